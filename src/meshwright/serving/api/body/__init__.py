"""What is said over HTTP: the bodies of requests and of answers, typed, as clients of OpenAI's API know them."""
