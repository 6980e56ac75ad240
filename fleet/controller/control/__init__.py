"""The controller's work: enrolment, assignments, ingestion of reports, rollouts. Synchronous, without HTTP."""
