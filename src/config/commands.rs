//! What may stand in a command, and what is allowed but unwise.
//!
//! Owns which placeholder makes sense where, the rule that a command says where its output goes, and the warnings.
//! Promises that every argument of a sound configuration can be rendered.

use super::place::Fault;
use super::{Config, Format};
use crate::template::{Part, Placeholder, Template};

/// Finds everything wrong with the commands of formats and notifications.
pub(super) fn command_faults(config: &Config, faults: &mut Vec<Fault>) {
    for (name, format) in &config.format {
        output(name, format, faults);
        for (list, at, argument) in format.arguments() {
            let index = format!("[{at}]");
            let key = if list == "produces" { vec!["format", name, list] } else { vec!["format", name, list, &index] };
            one_argument(config, &key, argument, |slot| misplaced(format, list, slot), faults);
        }
    }
    for (at, notify) in config.notify.iter().enumerate() {
        let index = format!("[{at}]");
        for (place, argument) in notify.command.iter().enumerate() {
            let key = ["notify", &index, "command", &format!("[{place}]")];
            one_argument(config, &key, argument, misplaced_in_notify, faults);
        }
    }
}

/// A format says where its output goes: `{output}` in its command, or `produces`.
fn output(name: &str, format: &Format, faults: &mut Vec<Fault>) {
    let [program, ..] = &format.command[..] else {
        faults.push(Fault::new(&["format", name, "command"], format!("format `{name}` has no command")));
        return;
    };
    if program.is_empty() {
        faults
            .push(Fault::new(&["format", name, "command"], format!("the command of format `{name}` names no program")));
    }
    let parsed = format.command.iter().filter_map(|argument| Template::parse(argument).ok());
    let names_output = parsed.flat_map(|template| template.parts).any(|part| part == Part::Slot(Placeholder::Output));
    match &format.produces {
        None if !names_output => {
            let what = format!("the command of format `{name}` does not say where its output goes");
            let hint = "write `{output}` in it, or `produces = \"{workdir}/*.…\"`";
            faults.push(Fault::new(&["format", name, "command"], what).hint(hint));
        }
        Some(_) if names_output => {
            let what = format!("format `{name}` has both `{{output}}` in its command and `produces`");
            faults.push(Fault::new(&["format", name, "produces"], what).hint("only one of them can be right"));
        }
        Some(pattern) if !pattern.starts_with("{workdir}/") || pattern.split('/').any(|part| part == "..") => {
            let what = format!("`produces` of format `{name}` must begin with `{{workdir}}/` and stay in it");
            faults.push(Fault::new(&["format", name, "produces"], what));
        }
        None | Some(_) => {}
    }
}

fn one_argument(
    config: &Config,
    key: &[&str],
    argument: &str,
    misplaced: impl Fn(&Placeholder) -> Option<String>,
    faults: &mut Vec<Fault>,
) {
    if argument.contains('\0') {
        faults.push(Fault::new(key, "an argument cannot hold a NUL"));
    }
    let template = match Template::parse(argument) {
        Ok(template) => template,
        Err(unknown) => {
            let mut fault = Fault::new(key, format!("unknown placeholder `{{{}}}`", unknown.name));
            fault.hint = unknown.nearest.map(|near| format!("did you mean `{{{near}}}`?"));
            faults.push(fault);
            return;
        }
    };
    for slot in template.slots() {
        if let Some(what) = misplaced(slot) {
            faults.push(Fault::new(key, what));
        }
        if let Placeholder::Opt(name) = slot
            && !config.options.contains_key(name)
        {
            let known = config.options.keys().map(String::as_str);
            let fault = Fault::new(key, format!("unknown option in `{slot}`")).hint_name(name, known);
            let declare = format!("declare it in [options.{name}]");
            let hint = fault.hint.as_ref().map_or(declare.clone(), |hint| format!("{hint} or {declare}"));
            faults.push(fault.hint(hint));
        }
    }
    if has_title_in_path(&template) {
        let what = format!("`{{title}}` stands inside a path in {argument:?}");
        faults.push(Fault::new(key, what).hint("a title may hold `/` and `..`, write `{title:path}`"));
    }
}

fn misplaced(format: &Format, list: &str, slot: &Placeholder) -> Option<String> {
    match slot {
        Placeholder::Input | Placeholder::Output if list == "fingerprint" => {
            Some(format!("`{slot}` has no meaning in `fingerprint`"))
        }
        Placeholder::Input if format.base.is_none() => Some("`{input}` needs a `base`".to_owned()),
        Placeholder::State | Placeholder::Reason | Placeholder::Detail | Placeholder::Meta => {
            Some(format!("`{slot}` has a meaning only in [[notify]]"))
        }
        Placeholder::Output if list == "produces" => Some("`{output}` has no meaning in `produces`".to_owned()),
        _ => None,
    }
}

fn misplaced_in_notify(slot: &Placeholder) -> Option<String> {
    let of_a_run = matches!(slot, Placeholder::Input | Placeholder::Workdir | Placeholder::Tmpdir);
    of_a_run.then(|| format!("`{slot}` has no meaning in [[notify]]"))
}

fn has_title_in_path(template: &Template) -> bool {
    let title = Part::Slot(Placeholder::Title);
    template.parts.windows(2).any(|pair| match pair {
        [Part::Text(before), after] if *after == title => before.ends_with('/'),
        [before, Part::Text(after)] if *before == title => after.starts_with('/'),
        _ => false,
    })
}

type IsSet = fn(&Config) -> bool;

/// What can be written already and has no effect yet; a line goes when its room is built.
const UNBUILT: &[(&str, IsSet)] = &[
    ("notify.*.url", |config| config.notify.iter().any(|notify| notify.url.is_some())),
    ("notify.*.email", |config| config.notify.iter().any(|notify| notify.email.is_some())),
];

/// Lists what is allowed but unwise, or has no effect yet.
pub fn warnings(config: &Config) -> Vec<String> {
    let unbuilt = UNBUILT.iter().filter(|(_, is_set)| is_set(config));
    let mut warnings: Vec<String> =
        unbuilt.map(|(key, _)| format!("`{key}` is set, but has no effect in this version")).collect();
    for (name, format) in &config.format {
        let lists = [
            ("command", &format.command),
            ("verify", &format.verify),
            ("precheck", &format.precheck),
            ("fingerprint", &format.fingerprint),
        ];
        let bare = lists.into_iter().filter(|(_, list)| has_bare_title(list));
        warnings.extend(bare.map(|(list, _)| bare_title(&format!("format.{name}.{list}"))));
    }
    for (at, notify) in config.notify.iter().enumerate() {
        if has_bare_title(&notify.command) {
            warnings.push(bare_title(&format!("notify[{at}].command")));
        }
    }
    warnings
}

/// Tells whether a title is an argument by itself that no `--` comes before.
fn has_bare_title(command: &[String]) -> bool {
    command.iter().take_while(|argument| *argument != "--").any(|argument| argument == "{title}")
}

fn bare_title(place: &str) -> String {
    format!("`{place}` has an argument that is `{{title}}` alone: a title may begin with `-`, put `--` before it")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::config::parse;

    fn loaded(text: &str) -> Result<Config, String> {
        let loaded = parse(text, Path::new("/c.toml"), &BTreeMap::new());
        loaded.map(|loaded| loaded.config).map_err(|error| error.message)
    }

    fn with_arguments(arguments: &str) -> Result<Config, String> {
        loaded(&format!(
            "[options.images]\nvalues = [\"x\"]\ndefault = \"x\"\n[format.epub]\ncommand = [\"x\", {arguments}]"
        ))
    }

    #[test]
    fn a_wrong_argument_is_refused_with_its_line() {
        for (arguments, message) in [
            ("\"{output}\",\n\"{titel}\"", "unknown placeholder `{titel}`, line 6 of /c.toml: did you mean `{title}`?"),
            (
                "\"{output}{opt.image}\"",
                "unknown option in `{opt.image}`, line 5 of /c.toml: did you mean `images`? or declare it in [options.image]",
            ),
            ("\"{output}{input}\"", "`{input}` needs a `base`, line 5 of /c.toml"),
            (
                "\"{output}\"]\nfingerprint = [\"x\", \"{output}\"",
                "`{output}` has no meaning in `fingerprint`, line 6 of /c.toml",
            ),
            ("\"{output}{state}\"", "`{state}` has a meaning only in [[notify]], line 5 of /c.toml"),
            (
                "\"x\"",
                "the command of format `epub` does not say where its output goes, line 5 of /c.toml: write `{output}` in it, or `produces = \"{workdir}/*.…\"`",
            ),
            (
                "\"{output}\"]\nproduces = \"{workdir}/*\"\naccept_exit = [0",
                "format `epub` has both `{output}` in its command and `produces`, line 6 of /c.toml: only one of them can be right",
            ),
            (
                "\"x\"]\nproduces = \"{workdir}/../*\"\naccept_exit = [0",
                "`produces` of format `epub` must begin with `{workdir}/` and stay in it, line 6 of /c.toml",
            ),
            (
                "\"{output}\", \"/srv/{title}.md\"",
                "`{title}` stands inside a path in \"/srv/{title}.md\", line 5 of /c.toml: a title may hold `/` and `..`, write `{title:path}`",
            ),
            (
                "\"{output}\", \"{title}/x\"",
                "`{title}` stands inside a path in \"{title}/x\", line 5 of /c.toml: a title may hold `/` and `..`, write `{title:path}`",
            ),
        ] {
            assert_eq!(with_arguments(arguments).unwrap_err(), message);
        }
    }

    #[test]
    fn a_title_that_touches_no_slash_is_fine() {
        for argument in ["--title={title}", "/srv/{title:path}.md", "{title:path}/{lang}", "a/b {title}"] {
            assert!(with_arguments(&format!("\"{{output}}\", \"{argument}\"")).is_ok(), "{argument}");
        }
    }

    #[test]
    fn a_format_without_a_command_is_refused() {
        let message = loaded("[format.epub]\nverify = [\"x\"]").unwrap_err();
        assert_eq!(message, "format `epub` has no command, line 1 of /c.toml");
    }

    #[test]
    fn a_notification_knows_the_state_and_no_run() {
        let notify = |argument: &str| loaded(&format!("[[notify]]\ncommand = [\"x\", \"{argument}\"]"));
        assert!(notify("{state}:{filename}").is_ok());
        assert_eq!(notify("{workdir}").unwrap_err(), "`{workdir}` has no meaning in [[notify]], line 2 of /c.toml");
    }

    #[test]
    fn a_bare_title_is_warned_of_unless_dashes_come_before() {
        let warned = |arguments: &str| warnings(&with_arguments(arguments).unwrap());
        let warning = "`format.epub.command` has an argument that is `{title}` alone: a title may begin with `-`, put `--` before it";
        assert_eq!(warned("\"{output}\", \"{title}\""), [warning]);
        assert_eq!(warned("\"{output}\", \"--\", \"{title}\""), [""; 0]);
    }

    #[test]
    fn what_is_not_built_yet_is_warned_of_when_it_is_used() {
        assert_eq!(warnings(&Config::default()), [""; 0]);
        let config = loaded("[[notify]]\nurl = \"https://x\"\n[[notify]]\nemail = \"a@b\"").unwrap();
        assert_eq!(
            warnings(&config),
            [
                "`notify.*.url` is set, but has no effect in this version",
                "`notify.*.email` is set, but has no effect in this version",
            ]
        );
    }
}
