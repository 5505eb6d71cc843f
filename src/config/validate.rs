//! Whether the values of a configuration are sound and fit together.
//!
//! Owns the rules on names, numbers and references; what may stand in a command is for `commands`. Promises to find
//! every fault, not only the first. Does not look at the machine: that a directory exists or a program is installed is
//! for `check`.

use std::path::Path;

use regex::Regex;

use super::commands::command_faults;
use super::place::Fault;
use super::{Config, FirstLetter, Format, Limits, MaxAge, OptionSpec, Queue, Span, TitleRules, secs};

/// What `[[notify]]` can tell of.
const EVENTS: &[&str] = &["ready", "failed"];

/// Finds everything wrong with a configuration.
pub(super) fn validate(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    places(config, &mut faults);
    cache(config, &mut faults);
    selections(config, &mut faults);
    options(config, &mut faults);
    queues(config, &mut faults);
    limits("limits", None, &config.limits, config, &mut faults);
    for (name, format) in &config.format {
        one_format(config, name, format, &mut faults);
    }
    notifications(config, &mut faults);
    command_faults(config, &mut faults);
    faults
}

/// Tells whether text can be a language or a font where no list says which there are: `[A-Za-z0-9 _.-]{1,64}`, not
/// beginning with a dot, dash or blank, so that it is neither a path that leads elsewhere nor an argument that is a flag.
pub fn is_plain_value(text: &str) -> bool {
    has_name_form(text, 64, b" _.-") && !text.starts_with(['.', '-', ' '])
}

fn has_name_form(name: &str, longest: usize, others: &[u8]) -> bool {
    (1..=longest).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || others.contains(&b))
}

fn places(config: &Config, faults: &mut Vec<Fault>) {
    for (key, path) in [(&["state_dir"][..], &config.state_dir), (&["cache", "dir"][..], &config.cache.dir)] {
        if path.as_os_str().is_empty() || path == Path::new("/") {
            faults.push(Fault::new(key, format!("`{}` must name a directory of its own", key.join("."))));
        }
    }
    if config.state_dir == config.cache.dir {
        faults.push(Fault::new(&["cache", "dir"], "`cache.dir` and `state_dir` must be different directories"));
    }
    let is_postgres = |url: &String| url.starts_with("postgres://") || url.starts_with("postgresql://");
    if !config.database.as_ref().is_none_or(is_postgres) {
        let what = "`database` must begin with postgres:// or postgresql://, no other path is accepted";
        faults.push(Fault::new(&["database"], what).hint("without it SQLite in `state_dir` is used"));
    }
    if config.node.lease < secs(10) {
        faults.push(Fault::new(&["node", "lease"], "`node.lease` must be at least 10s"));
    }
}

fn cache(config: &Config, faults: &mut Vec<Fault>) {
    let cache = &config.cache;
    if let MaxAge::After(age) = cache.max_age
        && cache.serve_grace.0 >= age
    {
        let what = format!(
            "`cache.serve_grace` ({}) must be shorter than `cache.max_age` ({})",
            cache.serve_grace, cache.max_age
        );
        faults.push(Fault::new(&["cache", "serve_grace"], what));
    }
    if cache.mode.0 > 0o777 || cache.mode.0 & 0o400 == 0 {
        let what = format!("`cache.mode` ({}) must be at most 0777 and let the owner read", cache.mode);
        faults.push(Fault::new(&["cache", "mode"], what));
    }
}

fn selections(config: &Config, faults: &mut Vec<Fault>) {
    for (key, list) in [("languages", &config.allow.languages), ("fonts", &config.allow.fonts)] {
        let wrong = |value: &&String| value.trim().is_empty() || value.len() > 256 || value.contains(char::is_control);
        if let Some(value) = list.iter().flatten().find(wrong) {
            faults.push(Fault::new(&["allow", key], format!("`allow.{key}` cannot hold {value:?}")));
        }
    }
    let defaults = &config.defaults;
    if defaults.title_first_letter != FirstLetter::AsIs && defaults.title_rules != TitleRules::Mediawiki {
        let what = "`defaults.title_first_letter` has a meaning only with `title_rules = \"mediawiki\"`";
        faults.push(Fault::new(&["defaults", "title_first_letter"], what));
    }
    allowed(&["defaults", "lang"], &defaults.lang, config.allow.languages.as_ref(), faults);
    allowed(&["defaults", "font"], &defaults.font, config.allow.fonts.as_ref(), faults);
    if !config.format.is_empty() {
        known_format(config, &["defaults", "format"], &defaults.format, faults);
    }
    for (lang, own) in &config.lang {
        allowed(&["lang", lang], lang, config.allow.languages.as_ref(), faults);
        if let Some(font) = &own.font {
            allowed(&["lang", lang, "font"], font, config.allow.fonts.as_ref(), faults);
        }
        if let Some(format) = &own.format {
            known_format(config, &["lang", lang, "format"], format, faults);
        }
    }
    for (name, format) in &config.alias {
        if config.format.contains_key(name) {
            faults.push(Fault::new(&["alias", name], format!("alias `{name}` is also a format")));
        }
        known_format(config, &["alias", name], format, faults);
    }
    for (at, deny) in config.deny.iter().enumerate() {
        regex(&["deny", &format!("[{at}]"), "title"], &deny.title, faults);
    }
}

fn allowed(key: &[&str], value: &str, list: Option<&Vec<String>>, faults: &mut Vec<Fault>) {
    let name = key.join(".");
    match list {
        Some(list) if list.iter().any(|known| known == value) => {}
        Some(list) => faults.push(
            Fault::new(key, format!("`{name}`: {value:?} is not in [allow]"))
                .hint_name(value, list.iter().map(String::as_str)),
        ),
        None if is_plain_value(value) => {}
        None => faults.push(
            Fault::new(key, format!("`{name}`: {value:?} is not allowed"))
                .hint("1 to 64 of A-Z a-z 0-9 blank _ . -, or a list in [allow]"),
        ),
    }
}

fn known_format(config: &Config, key: &[&str], format: &str, faults: &mut Vec<Fault>) {
    if !config.format.contains_key(format) {
        let what = format!("unknown format `{format}` in `{}`", key.join("."));
        faults.push(Fault::new(key, what).hint_name(format, config.format.keys().map(String::as_str)));
    }
}

fn known_queue(config: &Config, key: &[&str], queue: &str, faults: &mut Vec<Fault>) {
    if !config.queue.contains_key(queue) {
        let what = format!("unknown queue `{queue}` in `{}`", key.join("."));
        faults.push(Fault::new(key, what).hint_name(queue, config.queue.keys().map(String::as_str)));
    }
}

fn regex(key: &[&str], pattern: &str, faults: &mut Vec<Fault>) {
    if let Err(error) = Regex::new(pattern) {
        // The reader draws the pattern over several lines; the last one says what is wrong.
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        faults.push(Fault::new(key, format!("{pattern:?} is no regular expression ({reason})")));
    }
}

fn options(config: &Config, faults: &mut Vec<Fault>) {
    for (name, OptionSpec { values, default }) in &config.options {
        if !has_name_form(name, 64, b"_.-") {
            let what = format!("option name {name:?} must be 1 to 64 of A-Z a-z 0-9 _ . -");
            faults.push(Fault::new(&["options", name], what));
        }
        if let Some(value) = values.iter().find(|value| value.contains(char::is_control)) {
            let what = format!("option `{name}` cannot have the value {value:?}");
            faults.push(Fault::new(&["options", name, "values"], what));
        }
        if !values.contains(default) {
            let what = format!("the default {default:?} of option `{name}` is not among its values");
            let fault = Fault::new(&["options", name, "default"], what);
            faults.push(fault.hint_name(default, values.iter().map(String::as_str)));
        }
    }
}

fn queues(config: &Config, faults: &mut Vec<Fault>) {
    for (name, queue) in &config.queue {
        let Queue { slots, max_load, max_pressure, work_window, .. } = queue;
        if !has_name_form(name, 32, b"_-") {
            let what = format!("queue name {name:?} must be 1 to 32 of A-Z a-z 0-9 _ -");
            faults.push(Fault::new(&["queue", name], what));
        }
        if *slots > 1024 {
            let what = format!("`queue.{name}.slots` is {slots}, it must be at most 1024");
            faults.push(Fault::new(&["queue", name, "slots"], what));
        }
        if !max_load.is_finite() || *max_load < 0.0 {
            faults.push(Fault::new(&["queue", name, "max_load"], format!("`queue.{name}.max_load` must be 0 or more")));
        }
        if !(0.0..100.0).contains(max_pressure) {
            let what = format!("`queue.{name}.max_pressure` is a share of time in percent, 0 to less than 100");
            faults.push(Fault::new(&["queue", name, "max_pressure"], what));
        }
        if *work_window < secs(1) {
            let what = format!("`queue.{name}.work_window` must be at least 1s");
            faults.push(Fault::new(&["queue", name, "work_window"], what));
        }
    }
    if let Some(bypass) = &config.bypass {
        known_queue(config, &["bypass", "queue"], &bypass.queue, faults);
    }
}

/// Judges the bounds of `[limits]`, or those of one format that differ.
fn limits(section: &str, format: Option<&str>, limits: &Limits, config: &Config, faults: &mut Vec<Fault>) {
    let key = |name| match format {
        Some(format) => vec!["format", format, name],
        None => vec!["limits", name],
    };
    if limits.timeout == secs(0) {
        faults.push(Fault::new(&key("timeout"), format!("`{section}.timeout` must be longer than 0s")));
    }
    if !(-20..=19).contains(&limits.nice) {
        let what = format!("`{section}.nice` is {}, it must be -20 to 19", limits.nice);
        faults.push(Fault::new(&key("nice"), what));
    }
    // The exporter of a node that lost its lease must be gone before others take over: DESIGN §8.
    let last_third = Span(config.node.lease.0 / 3);
    if config.database.is_some() && limits.kill_grace > last_third {
        let grace = limits.kill_grace;
        let what =
            format!("`{section}.kill_grace` ({grace}) must fit into a third of `node.lease` ({})", config.node.lease);
        faults.push(Fault::new(&key("kill_grace"), what));
    }
}

fn one_format(config: &Config, name: &str, format: &Format, faults: &mut Vec<Fault>) {
    if !has_name_form(name, 64, b"._-") {
        let what = format!("format name {name:?} must be 1 to 64 of A-Z a-z 0-9 . _ -");
        faults.push(Fault::new(&["format", name], what));
    }
    let extension = config.extension(name);
    if !has_name_form(&extension, 16, b"") {
        let what = format!("format `{name}` has the extension {extension:?}, it must be 1 to 16 of A-Z a-z 0-9");
        faults.push(Fault::new(&["format", name, "extension"], what).hint("write `extension = \"…\"`"));
    }
    known_queue(config, &["format", name, "queue"], &format.queue, faults);
    base(config, name, format, faults);
    if format.limits(&config.limits) != config.limits {
        limits(&format!("format.{name}"), Some(name), &format.limits(&config.limits), config, faults);
    }
    for (key, codes) in [("transient_exit", &format.transient_exit), ("accept_exit", &format.accept_exit)] {
        if let Some(code) = codes.iter().find(|code| !(0..=255).contains(*code)) {
            let what = format!("`format.{name}.{key}`: {code} is no exit code, they are 0 to 255");
            faults.push(Fault::new(&["format", name, key], what));
        }
    }
    if format.accept_exit.is_empty() {
        let what = format!("`format.{name}.accept_exit` is empty, so that no run could succeed");
        faults.push(Fault::new(&["format", name, "accept_exit"], what));
    }
    for (at, pattern) in format.transient_output.iter().enumerate() {
        regex(&["format", name, "transient_output", &format!("[{at}]")], pattern, faults);
    }
    for (variable, value) in &format.env {
        if variable.is_empty() || variable.contains(['=', '\0']) || value.contains('\0') {
            let what = format!("`format.{name}.env`: {variable:?} cannot be given to a program");
            faults.push(Fault::new(&["format", name, "env", variable], what));
        }
    }
}

fn base(config: &Config, name: &str, format: &Format, faults: &mut Vec<Fault>) {
    let Some(base) = &format.base else { return };
    let key = ["format", name, "base"];
    if !config.format.contains_key(base) {
        let others = config.format.keys().map(String::as_str).filter(|other| *other != name);
        let what = format!("unknown base `{base}` of format `{name}`");
        faults.push(Fault::new(&key, what).hint_name(base, others));
        return;
    }
    let chain = config.chain(name);
    let ends_in = chain.last().and_then(|last| config.format.get(*last)?.base.as_deref());
    if ends_in == Some(name) {
        faults.push(Fault::new(&key, format!("a circle of bases: {} -> {name}", chain.join(" -> "))));
    }
}

fn notifications(config: &Config, faults: &mut Vec<Fault>) {
    let names: Vec<String> = config.listeners().map(|(name, _)| name).collect();
    if let Some(name) = names.iter().find(|name| names.iter().filter(|other| other == name).count() > 1) {
        faults.push(Fault::new(&["notify"], format!("two [[notify]] have the name {name:?}")));
    }
    for (at, notify) in config.notify.iter().enumerate() {
        if notify.timeout == secs(0) {
            faults.push(Fault::new(
                &["notify", &format!("[{at}]"), "timeout"],
                "`notify.timeout` must be longer than 0s",
            ));
        }
        if let Some(event) = notify.on.iter().find(|event| !EVENTS.contains(&event.as_str())) {
            let what = format!("`notify.on`: {event:?} is nothing that is told of");
            faults
                .push(Fault::new(&["notify", &format!("[{at}]"), "on"], what).hint_name(event, EVENTS.iter().copied()));
        }
        if let Some(name) = notify.name.as_ref().filter(|name| !has_name_form(name, 64, b"._-")) {
            let what = format!("the name {name:?} of a [[notify]] must be 1 to 64 of A-Z a-z 0-9 . _ -");
            faults.push(Fault::new(&["notify", &format!("[{at}]"), "name"], what));
        }
        let ways = [!notify.command.is_empty(), notify.url.is_some(), notify.email.is_some()];
        if ways.into_iter().filter(|way| *way).count() != 1 {
            let what = "a [[notify]] needs one of `command`, `url` and `email`";
            faults.push(Fault::new(&["notify", &format!("[{at}]")], what));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::parse;

    const EPUB: &str = "[format.epub]\ncommand = [\"x\", \"{output}\"]\n";

    fn refused(text: &str) -> String {
        let loaded = parse(text, Path::new("/c.toml"), &BTreeMap::new());
        loaded.expect_err(text).message
    }

    #[test]
    fn one_fault_is_told_in_one_line() {
        for (text, message) in [
            (
                "database = \"sqlite://x\"",
                "`database` must begin with postgres:// or postgresql://, no other path is accepted, line 1 of /c.toml: without it SQLite in `state_dir` is used",
            ),
            (
                "[cache]\nmax_age = \"20s\"",
                "`cache.serve_grace` (30s) must be shorter than `cache.max_age` (20s), line 1 of /c.toml",
            ),
            (
                "[cache]\nmode = \"1640\"",
                "`cache.mode` (1640) must be at most 0777 and let the owner read, line 2 of /c.toml",
            ),
            (
                "[cache]\nmode = \"0240\"",
                "`cache.mode` (0240) must be at most 0777 and let the owner read, line 2 of /c.toml",
            ),
            ("state_dir = \"\"", "`state_dir` must name a directory of its own, line 1 of /c.toml"),
            (
                "state_dir = \"/var/cache/export-queue\"",
                "`cache.dir` and `state_dir` must be different directories, /c.toml",
            ),
            ("[node]\nlease = 9", "`node.lease` must be at least 10s, line 2 of /c.toml"),
            (
                "database = \"postgres://x/y\"\n[limits]\nkill_grace = 31",
                "`limits.kill_grace` (31s) must fit into a third of `node.lease` (1m 30s), line 3 of /c.toml",
            ),
            ("[limits]\nnice = 20", "`limits.nice` is 20, it must be -20 to 19, line 2 of /c.toml"),
            ("[limits]\ntimeout = 0", "`limits.timeout` must be longer than 0s, line 2 of /c.toml"),
            ("[queue.\"a/b\"]", "queue name \"a/b\" must be 1 to 32 of A-Z a-z 0-9 _ -, line 1 of /c.toml"),
            ("[queue.default]\nmax_load = -1", "`queue.default.max_load` must be 0 or more, line 2 of /c.toml"),
            (
                "[queue.express]\n[bypass]\nmax_pages = 1\nqueue = \"expres\"",
                "unknown queue `expres` in `bypass.queue`, line 4 of /c.toml: did you mean `express`?",
            ),
            (
                "[defaults]\nlang = \"../x\"",
                "`defaults.lang`: \"../x\" is not allowed, line 2 of /c.toml: 1 to 64 of A-Z a-z 0-9 blank _ . -, or a list in [allow]",
            ),
            (
                "[allow]\nfonts = [\"defualt\"]",
                "`defaults.font`: \"default\" is not in [allow], /c.toml: did you mean `defualt`?",
            ),
            (
                "[options.a]\nvalues = [\"x\"]\ndefault = \"y\"",
                "the default \"y\" of option `a` is not among its values, line 3 of /c.toml: did you mean `x`?",
            ),
            (
                "[[deny]]\ntitle = \"(\"\nmessage = \"\"",
                "\"(\" is no regular expression (unclosed group), line 2 of /c.toml",
            ),
            (
                "[defaults]\ntitle_first_letter = \"capital\"",
                "`defaults.title_first_letter` has a meaning only with `title_rules = \"mediawiki\"`, line 2 of /c.toml",
            ),
            (
                "[[notify]]\ncommand = [\"x\"]\non = [\"faild\"]",
                "`notify.on`: \"faild\" is nothing that is told of, line 3 of /c.toml: did you mean `failed`?",
            ),
            (
                "[[notify]]\ncommand = [\"x\"]\nname = \"2\"\n[[notify]]\ncommand = [\"y\"]",
                "two [[notify]] have the name \"2\", line 1 of /c.toml",
            ),
            ("[[notify]]\non = []", "a [[notify]] needs one of `command`, `url` and `email`, line 1 of /c.toml"),
        ] {
            assert_eq!(refused(text), message);
        }
    }

    #[test]
    fn a_fault_of_a_format_is_told_with_its_line() {
        for (text, message) in [
            (
                "queue = \"defualt\"",
                "unknown queue `defualt` in `format.epub.queue`, line 3 of /c.toml: did you mean `default`?",
            ),
            ("base = \"epup\"", "unknown base `epup` of format `epub`, line 3 of /c.toml"),
            ("base = \"epub\"", "a circle of bases: epub -> epub, line 3 of /c.toml"),
            (
                "extension = \"a.b\"",
                "format `epub` has the extension \"a.b\", it must be 1 to 16 of A-Z a-z 0-9, line 3 of /c.toml: write `extension = \"…\"`",
            ),
            ("accept_exit = []", "`format.epub.accept_exit` is empty, so that no run could succeed, line 3 of /c.toml"),
            (
                "transient_exit = [75,\n256]",
                "`format.epub.transient_exit`: 256 is no exit code, they are 0 to 255, line 3 of /c.toml",
            ),
            (
                "transient_output = [\"ok\",\n\"[\"]",
                "\"[\" is no regular expression (unclosed character class), line 4 of /c.toml",
            ),
            ("nice = -21", "`format.epub.nice` is -21, it must be -20 to 19, line 3 of /c.toml"),
            ("env = { \"A=B\" = \"x\" }", "`format.epub.env`: \"A=B\" cannot be given to a program, line 3 of /c.toml"),
            ("[alias]\nepub = \"epub\"", "alias `epub` is also a format, line 4 of /c.toml"),
            (
                "[alias]\nebook = \"epup\"",
                "unknown format `epup` in `alias.ebook`, line 4 of /c.toml: did you mean `epub`?",
            ),
            (
                "[defaults]\nformat = \"pdf\"",
                "unknown format `pdf` in `defaults.format`, line 4 of /c.toml: known are epub",
            ),
            (
                "[lang.bn]\nformat = \"eupb\"",
                "unknown format `eupb` in `lang.bn.format`, line 4 of /c.toml: did you mean `epub`?",
            ),
        ] {
            assert_eq!(refused(&format!("{EPUB}{text}")), message);
        }
    }

    #[test]
    fn every_fault_is_told_each_on_its_line() {
        let message = refused("[node]\nlease = 1\n[limits]\nnice = 99");
        assert_eq!(message.lines().count(), 2, "{message}");
    }

    #[test]
    fn a_circle_is_told_by_its_members_only() {
        let format =
            |name: &str, base: &str| format!("[format.{name}]\nbase = \"{base}\"\ncommand = [\"x\", \"{{output}}\"]\n");
        let message = refused(&[format("epub", "mobi"), format("mobi", "epub"), format("pdf", "epub")].concat());
        assert_eq!(
            message,
            "a circle of bases: epub -> mobi -> epub, line 2 of /c.toml\na circle of bases: mobi -> epub -> mobi, line 5 of /c.toml"
        );
    }

    #[test]
    fn a_format_name_that_is_no_extension_needs_one() {
        let format = |more: &str| format!("{EPUB}[format.pdf-a5]\ncommand = [\"x\", \"{{output}}\"]\n{more}");
        assert!(refused(&format("")).contains("has the extension \"pdf-a5\""));
        assert!(parse(&format("extension = \"pdf\""), Path::new("/c.toml"), &BTreeMap::new()).is_ok());
    }

    #[test]
    fn files_that_never_expire_may_have_any_grace() {
        let text = "[cache]\nmax_age = \"never\"\nserve_grace = \"90d\"";
        assert!(parse(text, Path::new("/c.toml"), &BTreeMap::new()).is_ok());
    }
}
