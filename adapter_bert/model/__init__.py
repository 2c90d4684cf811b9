"""Facts about models without TensorFlow: settings, variables, kinds of tasks."""
