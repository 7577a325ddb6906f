"""What is proven and counted of programs: verification, memory bounds, symbolic outputs, metrics."""
