"""What things are: ids, states and their moves, specs, errors. Pure; imports no other room."""
