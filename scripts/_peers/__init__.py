"""Parts of scripts/compare_peers."""
