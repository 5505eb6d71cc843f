//! The single values that the environment sets: `EXPORT_QUEUE__SECTION__KEY=value`.
//!
//! Promises that a value which reads as TOML and fits is taken so, else as text (`EXPORT_QUEUE__DEFAULTS__LANG=nan`
//! is a language), and that a wrong one is blamed on its variable. Names with one underscore are other variables.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::Config;
use super::place::{ConfigError, Fault, KeyPath, reworded};

const PREFIX: &str = "EXPORT_QUEUE__";

/// One value that a variable sets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Override {
    pub(super) variable: String,
    pub(super) key: KeyPath,
    text: String,
}

impl Override {
    /// Tells whether the variable sets the value at `key`, or a table or list around it.
    pub(super) fn sets(&self, key: &[String]) -> bool {
        key.starts_with(&self.key)
    }

    fn error(&self, what: &str) -> ConfigError {
        ConfigError::new(format!("environment variable {}: {what}", self.variable))
    }
}

/// Picks the overrides out of an environment.
pub(super) fn collect(env: &BTreeMap<String, String>) -> Result<Vec<Override>, ConfigError> {
    let ours = env.iter().filter_map(|(name, text)| Some((name, name.strip_prefix(PREFIX)?, text)));
    ours.map(|(name, path, text)| {
        let key = path.to_ascii_lowercase().split("__").map(str::to_owned).collect::<KeyPath>();
        let found = Override { variable: name.clone(), key, text: text.clone() };
        if found.key.iter().any(String::is_empty) {
            return Err(found.error("an override is named EXPORT_QUEUE__SECTION__KEY"));
        }
        Ok(found)
    })
    .collect()
}

/// Puts the overrides over what the file says.
pub(super) fn apply(file: &Table, overrides: &[Override]) -> Result<Config, ConfigError> {
    let merged = merge(file, overrides)?;
    Config::deserialize(merged).map_err(|error| blame(file, overrides, &error))
}

fn merge(file: &Table, overrides: &[Override]) -> Result<Table, ConfigError> {
    let mut merged = file.clone();
    for by in overrides {
        let text = Value::String(by.text.clone());
        let typed = by.text.parse::<Value>().unwrap_or_else(|_| text.clone());
        let with_typed = put(&merged, by, typed)?;
        let with_text = put(&merged, by, text)?;
        let text_fits_better =
            Config::deserialize(with_typed.clone()).is_err() && Config::deserialize(with_text.clone()).is_ok();
        merged = if text_fits_better { with_text } else { with_typed };
    }
    Ok(merged)
}

fn put(table: &Table, by: &Override, value: Value) -> Result<Table, ConfigError> {
    let mut whole = table.clone();
    let mut place = &mut whole;
    let (last, sections) = by.key.split_last().ok_or_else(|| by.error("no key is named"))?;
    for section in sections {
        let inner = place.entry(section.clone()).or_insert_with(|| Value::Table(Table::new()));
        place = inner.as_table_mut().ok_or_else(|| by.error(&format!("`{section}` is not a section")))?;
    }
    place.insert(last.clone(), value);
    Ok(whole)
}

/// Finds the variable without which the rest is right.
fn blame(file: &Table, overrides: &[Override], error: &toml::de::Error) -> ConfigError {
    for (at, by) in overrides.iter().enumerate() {
        let others = [&overrides[..at], &overrides[at + 1..]].concat();
        let rest = merge(file, &others);
        if rest.is_ok_and(|rest| Config::deserialize(rest).is_ok()) {
            return by.error(&worded(error.message(), &by.key));
        }
    }
    let variables: Vec<&str> = overrides.iter().map(|by| by.variable.as_str()).collect();
    ConfigError::new(format!("environment variables {}: {}", variables.join(", "), worded(error.message(), &[])))
}

fn worded(message: &str, key: &[String]) -> String {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let until = key.iter().position(|part| Some(part.as_str()) == unknown).map_or(key.len(), |at| at + 1);
    let Fault { what, hint, .. } = reworded(message, &key[..until]);
    let line = hint.map_or_else(|| what.clone(), |hint| format!("{what}: {hint}"));
    line.replace('\n', " ")
}
