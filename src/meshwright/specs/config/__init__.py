"""Models as files: Hugging Face configurations, presets, exports."""
