"""How the demo's two releases are made: texts, tokenizer, model, training, checks."""
