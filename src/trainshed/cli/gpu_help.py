"""The help of ``gpu``, kept as text for the reason that `trainshed.cli.main` has. A test compares the two."""

HELP = """\
Usage: {program} [OPTIONS] COMMAND [ARGS]...

  Run a project on a GPU, wherever there is one.

  Pack it, watch it, get its outputs back.

Options:
  -V, --version  Show the version and exit.
  -h, --help     Show this message and exit.

Commands:
  run         Run a project's script where there is a GPU, and bring back what
              it wrote.
  route       Say where it would run and whether you would be asked; creates
              nothing.
  status      Show what goes on, or everything about one Job.
  watch       Watch Jobs as they go on.
  jobs        List Jobs that have not ended.
  history     List Jobs that have ended.
  logs        Print what a Job's program wrote.
  cancel      Cancel a Job; what it saved is kept.
  approve     Let a Job run that asks for a person.
  deny        Refuse a Job that asks for a person.
  fetch       Bring what a Job wrote.
  quota       Show what is left at each provider.
  policy      Show and change when a person is asked.
  providers   Show where Jobs can run.
  login       Say what a provider needs to be used, and ask it.
  secrets     Keep values that Jobs get as variables.
  daemon      Run, start, stop and look at the server that Jobs go through.
  doctor      Say what is missing for each provider.
  notify      Tell when a Job ends or asks.
  bundle      Show what of a folder would ship, and why the rest would not.
  init        Write a gpu.yaml from what the folder holds.
  setup       Say how coding agents are told of this program.
  statusline  Print one line about Jobs, for a prompt.
  mcp         Serve the Model Context Protocol over standard input and output.

  Jobs go through a server of your own, started on first use; it needs no
  login.
"""
