"""Schedules that are searched for given stage times and memory."""
