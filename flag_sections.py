"""--help by subject: the sections that flags stand in.

absl shows flags by the module that defined them. Ours are defined in the name of a section:

    at = flag_sections.section("Output", flag_values)
    flags.DEFINE_string("output_dir", None, "Where results go.", **at)
"""

# In the order in which --help has them.
SECTIONS = (
    "What is done",
    "Trials",
    "Tasks",
    "Task and data",
    "Tables and figures",
    "Comparison of two classifiers",
    "Pretrained BERT",
    "What trains",
    "Adapters",
    "Model",
    "Search",
    "Training",
    "Evaluation and prediction",
    "Output",
    "Network",
    "Limits",
    "Devices",
)


def section(title, flag_values):
    """The arguments by which one of absl's DEFINE functions puts a flag into a section.

    Args:
      title: one of `SECTIONS`.
      flag_values: `absl.flags.FlagValues`, where the flag is defined.
    """
    if title not in SECTIONS:
        raise ValueError(f"{title!r} is none of SECTIONS")
    return {"flag_values": flag_values, "module_name": title}


def help_text(flag_values):
    """The flags of all sections, as absl words them."""
    texts = (flag_values.module_help(title) for title in SECTIONS)
    return "\n".join(text for text in texts if text)
