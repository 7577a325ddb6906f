"""What a few measured runs of one's own say of a stack, by Bayes' rule: factors, intervals, and which run is an outlier."""
