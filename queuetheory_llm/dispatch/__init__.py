"""Where a call goes among instances that can serve it."""
