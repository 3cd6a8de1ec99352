"""The messages between the coordinator's and the workers' machines, and the rules that both keep."""
