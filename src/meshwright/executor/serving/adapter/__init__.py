"""Low-rank adapters of a served model: folders of PEFT, and which are loaded."""
