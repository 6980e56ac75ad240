"""Edge inference gateway: the controller half. Empty until the fleet is built."""
