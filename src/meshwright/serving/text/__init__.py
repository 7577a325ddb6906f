"""Text and tokens: tokenizers of local folders, text of outputs while they grow, and chats as prompts."""
