"""Where the parameters of a served model come from: a checkpoint of a training, or a folder of quantised weights."""
