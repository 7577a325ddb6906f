"""Schedules that are functions of counts, one file each."""
