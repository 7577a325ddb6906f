"""The commands plan, import and export."""
