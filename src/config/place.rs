//! Where in the file or the environment something stands, and how a fault in it is worded.
//!
//! Promises that every message is one line, names the file or the variable, the line where there is one, and the
//! nearest right name where a name is wrong; and that no message repeats a secret.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::overrides::Override;
use crate::template::nearest;

/// The configuration cannot be used; one line for each fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// What is wrong, where, and the mend where one is known.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// The way to a value: keys, and `[n]` for a place in a list.
pub(super) type KeyPath = Vec<String>;

/// Something wrong with one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) key: KeyPath,
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn new(key: &[&str], what: impl Into<String>) -> Self {
        let key = key.iter().map(|part| (*part).to_owned()).collect();
        Self { key, what: what.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says which of the known names was probably meant, or which there are.
    pub(super) fn hint_name<'a>(mut self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        self.hint = match nearest(name, known.iter().copied()) {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if known.is_empty() => None,
            None => Some(format!("known are {}", known.join(", "))),
        };
        self
    }

    fn worded(&self, place: &str) -> String {
        let line = match &self.hint {
            Some(hint) => format!("{}, {place}: {hint}", self.what),
            None => format!("{}, {place}", self.what),
        };
        line.replace('\n', " ")
    }
}

/// The file and the overrides that a configuration came from.
pub(super) struct Places<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) document: &'a DeTable<'a>,
    pub(super) overrides: &'a [Override],
}

impl Places<'_> {
    /// Words faults that were found in the finished configuration.
    pub(super) fn error(&self, faults: &[Fault]) -> ConfigError {
        let lines: Vec<String> = faults.iter().map(|fault| fault.worded(&self.of(&fault.key))).collect();
        ConfigError::new(lines.join("\n"))
    }

    /// Words what the TOML reader found wrong in the file.
    pub(super) fn read_error(&self, error: &toml::de::Error) -> ConfigError {
        let Some(span) = error.span() else {
            return self.error(&[reworded(error.message(), &[])]);
        };
        let key = key_at(self.document, span.start);
        let fault = reworded(error.message(), &key);
        ConfigError::new(fault.worded(&line_place(self.path, self.text, span.start)))
    }

    fn of(&self, key: &[String]) -> String {
        if let Some(by) = self.overrides.iter().rev().find(|by| by.sets(key)) {
            return format!("environment variable {}", by.variable);
        }
        match span_of(self.document, key) {
            Some(span) => line_place(self.path, self.text, span.start),
            None => self.path.display().to_string(),
        }
    }
}

/// Words a place in the file: `line 12 of FILE`.
pub(super) fn line_place(path: &Path, text: &str, offset: usize) -> String {
    let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    format!("line {line} of {}", path.display())
}

/// Turns what the reader says about the value at `key` into our words.
pub(super) fn reworded(message: &str, key: &[String]) -> Fault {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let fault = |what: String| Fault { key: key.to_vec(), what, hint: None };
    if message.starts_with("unknown field") && !names.is_empty() {
        let ends_there = key.last().is_some_and(|last| last == names[0]);
        let section = if ends_there { &key[..key.len() - 1] } else { key };
        return fault(format!("unknown key `{}`{}", names[0], in_section(section)))
            .hint_name(names[0], names[1..].iter().copied());
    }
    if message.starts_with("missing field") && !names.is_empty() {
        return fault(format!("missing key `{}`{}", names[0], in_section(key)));
    }
    match key {
        [] => fault(message.to_owned()),
        _ if is_secret(key) => fault(format!("`{}` must be text", dotted(key))),
        _ => fault(format!("`{}`: {message}", dotted(key))),
    }
}

fn in_section(section: &[String]) -> String {
    if section.is_empty() { String::new() } else { format!(" in [{}]", dotted(section)) }
}

/// Tells whether a value may hold a secret: the database URL and the variables of exporters.
pub(super) fn is_secret(key: &[String]) -> bool {
    match key {
        [first] => first == "database",
        [first, _, third, ..] => first == "format" && third == "env",
        _ => false,
    }
}

/// Writes the way to a value as TOML would: `format."a.b".command[2]`.
pub(super) fn dotted(key: &[String]) -> String {
    let mut text = String::new();
    for part in key {
        if index(part).is_some() {
            text.push_str(part);
            continue;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(&quoted_key(part));
    }
    text
}

/// Writes one key, in quotes where TOML needs them.
pub(super) fn quoted_key(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quoted(key) }
}

/// Writes a text as a TOML string of one line.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => {
                quoted.extend([format!("\\u{:04X}", u32::from(control))]);
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// Reads the number of a `[n]`.
pub(super) fn index(part: &str) -> Option<usize> {
    part.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// Finds where a value stands, or the nearest table around it.
fn span_of(document: &DeTable, key: &[String]) -> Option<Range<usize>> {
    let (first, rest) = key.split_first()?;
    let (name, value) = document.iter().find(|(name, _)| name.get_ref() == first)?;
    span_within(value.get_ref(), rest).or_else(|| Some(name.span()))
}

fn span_within(value: &DeValue, key: &[String]) -> Option<Range<usize>> {
    let (first, rest) = key.split_first()?;
    match (value, index(first)) {
        (DeValue::Array(list), Some(at)) => {
            let item = list.get(at)?;
            span_within(item.get_ref(), rest).or_else(|| Some(item.span()))
        }
        (DeValue::Table(table), _) => span_of(table, key),
        _ => None,
    }
}

/// Finds which value or key stands at `offset`.
fn key_at(document: &DeTable, offset: usize) -> KeyPath {
    let mut found = Vec::new();
    for (name, value) in document {
        let mut key = vec![name.get_ref().to_string()];
        if name.span().contains(&offset) && !matches!(value.get_ref(), DeValue::Table(_)) {
            return key;
        }
        let (is_here, within) = match value.get_ref() {
            DeValue::Table(table) => (name.span().contains(&offset), key_at(table, offset)),
            DeValue::Array(list) => (value.span().contains(&offset), key_in_list(list, offset)),
            _ => (value.span().contains(&offset), Vec::new()),
        };
        if !is_here && within.is_empty() && !value.span().contains(&offset) {
            continue;
        }
        key.extend(within);
        if key.len() > found.len() {
            found = key;
        }
    }
    found
}

fn key_in_list(list: &toml::de::DeArray, offset: usize) -> KeyPath {
    for (at, item) in list.iter().enumerate() {
        let within = match item.get_ref() {
            DeValue::Table(table) => key_at(table, offset),
            _ => Vec::new(),
        };
        if !within.is_empty() || item.span().contains(&offset) {
            return [vec![format!("[{at}]")], within].concat();
        }
    }
    Vec::new()
}
