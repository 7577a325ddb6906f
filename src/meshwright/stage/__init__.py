"""What one stage computes, keeps, holds and sends."""
