"""Parts of scripts/zoo."""
