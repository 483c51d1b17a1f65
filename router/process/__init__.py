"""Parts of one gateway process, which `router.app` puts together: tasks, reports, and each side's state."""
