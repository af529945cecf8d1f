"""The methods of both services, one file a concern: from a public message to an answer or a stream."""
