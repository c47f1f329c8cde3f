"""The controller: admit, place, launch, observe, collect, release; and the door for submissions."""
