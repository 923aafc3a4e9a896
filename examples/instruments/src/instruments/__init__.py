"""Laboratory instruments, as a resource type of Tenure."""
