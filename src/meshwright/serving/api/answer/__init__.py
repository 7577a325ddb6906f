"""From a body to an answer: requests for the service, its tokens as text, and the form the client asked for."""
