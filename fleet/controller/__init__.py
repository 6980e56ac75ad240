"""The controller: API, enrolment, rollouts, monitoring, and the records of all devices."""
