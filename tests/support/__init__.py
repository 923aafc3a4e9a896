"""What tests share: servers, fakes written by hand, and the run of all suites."""
