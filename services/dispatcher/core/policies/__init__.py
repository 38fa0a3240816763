"""One policy a file. Every class here that has a `name` of its own is a policy; `policy_named` finds it."""
