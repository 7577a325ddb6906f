"""Which requests run next: sequences, queues, batches and the policies that choose them. No tensors, no clock."""
