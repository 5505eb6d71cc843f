//! Showing the configuration in force, each value with where it comes from.
//!
//! Promises that what is shown reads again as TOML, that every value in force is shown, and that passwords in the
//! database URL and the variables of exporters are `***`.

use std::path::Path;

use toml::{Table, Value};

use super::overrides::Override;
use super::place::{KeyPath, dotted, index, is_secret, quoted, quoted_key};
use super::{Config, Loaded};

/// Where the values of a configuration came from.
#[derive(Debug)]
pub struct Origins<'a> {
    path: &'a Path,
    file: Table,
    overrides: &'a [Override],
}

impl<'a> Origins<'a> {
    /// Reads what was loaded once more, for the places of its values.
    pub fn of(loaded: &'a Loaded) -> Self {
        // A text that was read as a configuration is a table.
        let file = toml::from_str(&loaded.text).unwrap_or_default();
        Self { path: loaded.path.as_deref().unwrap_or(Path::new("")), file, overrides: &loaded.overrides }
    }

    /// Lists every value in force as dotted key, value and origin; secrets are `***`.
    pub fn rows(&self, config: &Config) -> Vec<(String, String, String)> {
        let mut rows = Vec::new();
        self.collect(&mut Vec::new(), &Value::Table(table_of(config)), &mut rows);
        rows
    }

    fn collect(&self, key: &mut KeyPath, value: &Value, rows: &mut Vec<(String, String, String)>) {
        match value {
            Value::Table(table) => {
                for (name, inner) in table {
                    key.push(name.clone());
                    self.collect(key, inner, rows);
                    key.pop();
                }
            }
            Value::Array(list) if is_list_of_tables(list) => {
                for (at, inner) in list.iter().enumerate() {
                    key.push(format!("[{at}]"));
                    self.collect(key, inner, rows);
                    key.pop();
                }
            }
            leaf => rows.push((dotted(key), shown(key, leaf), self.origin(key))),
        }
    }

    fn origin(&self, key: &[String]) -> String {
        if let Some(by) = self.overrides.iter().rev().find(|by| by.sets(key)) {
            return format!("environment {}", by.variable);
        }
        if is_in(&self.file, key) { self.path.display().to_string() } else { "default".to_owned() }
    }
}

/// Writes the configuration in force as TOML, with `origin` each value with a comment that says where it comes from.
pub fn show(loaded: &Loaded, origin: bool) -> String {
    let mut writer = Writer { text: String::new(), origins: origin.then(|| Origins::of(loaded)) };
    writer.table(&mut Vec::new(), &table_of(&loaded.config));
    writer.text
}

struct Writer<'a> {
    text: String,
    origins: Option<Origins<'a>>,
}

impl Writer<'_> {
    /// Writes the plain values of a table, then the tables in it.
    fn table(&mut self, key: &mut KeyPath, table: &Table) {
        let (sections, plain): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| is_section(value));
        for (name, value) in plain {
            key.push(name.clone());
            self.line(key, value);
            key.pop();
        }
        for (name, value) in sections {
            key.push(name.clone());
            self.section(key, value);
            key.pop();
        }
    }

    fn section(&mut self, key: &mut KeyPath, value: &Value) {
        match value {
            Value::Table(table) => {
                if table.values().any(|inner| !is_section(inner)) {
                    self.header(&format!("[{}]", dotted(key)));
                }
                self.table(key, table);
            }
            Value::Array(list) => {
                let header = format!("[[{}]]", dotted(key));
                for (at, table) in list.iter().filter_map(Value::as_table).enumerate() {
                    self.header(&header);
                    key.push(format!("[{at}]"));
                    self.table(key, table);
                    key.pop();
                }
            }
            Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {}
        }
    }

    fn header(&mut self, header: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text.extend([gap, header, "\n"]);
    }

    fn line(&mut self, key: &[String], value: &Value) {
        let name = key.last().map_or_else(String::new, |name| quoted_key(name));
        let origin =
            self.origins.as_ref().map_or_else(String::new, |origins| format!("  # {}", one_line(&origins.origin(key))));
        let value = shown(key, value);
        self.text.extend([name.as_str(), " = ", &value, &origin, "\n"]);
    }
}

fn table_of(config: &Config) -> Table {
    // Every field is text (paths too: `parse` refuses others), a number within TOML's bounds, a list or a table with
    // text keys, so it always serializes.
    Table::try_from(config).unwrap_or_default()
}

fn is_section(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::Array(list) => is_list_of_tables(list),
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => false,
    }
}

fn is_list_of_tables(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(Value::is_table)
}

fn is_in(table: &Table, key: &[String]) -> bool {
    let Some((first, rest)) = key.split_first() else {
        return true;
    };
    let mut value = table.get(first);
    for part in rest {
        value = match index(part) {
            Some(at) => value.and_then(|list| list.get(at)),
            None => value.and_then(|table| table.get(part.as_str())),
        };
    }
    value.is_some()
}

/// Writes a value on one line, secrets as `***`.
fn shown(key: &[String], value: &Value) -> String {
    match value {
        Value::String(_) if is_secret(key) && key.len() > 1 => quoted("***"),
        Value::String(url) if is_secret(key) => quoted(&without_password(url)),
        other => inline(other),
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(list) => format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(name, inner)| format!("{} = {}", quoted_key(name), inline(inner))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => value.to_string(),
    }
}

/// Hides the password of a URL, whether it stands before the host or among the parameters; in doubt it hides more.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // The last @ ends the user: a password may hold an @, / or ? that nobody escaped.
    let hidden = match rest.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{scheme}://{user}:***@{host}"),
        None => url.to_owned(),
    };
    let Some((address, parameters)) = hidden.split_once('?') else {
        return hidden;
    };
    let parameters: Vec<String> = parameters.split('&').map(without_value_of_password).collect();
    format!("{address}?{}", parameters.join("&"))
}

fn without_value_of_password(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=***"),
        _ => pair.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::parse;

    const FILE: &str = r#"
        database = "postgres://queue:s3cr:t@db/exports?sslmode=require&sslpassword=pst"
        alias = { "e book" = "epub" }
        [limits]
        timeout = "90s"
        [format.epub]
        command = ["x", "{output}", "a\nb\"\\"]
        env = { TOKEN = "hush" }
        [[notify]]
        on = ["ready"]
        email = "ops@example.org"
        [[notify]]
        url = "https://example.org"
        "#;

    fn loaded() -> Loaded {
        let env = BTreeMap::from([("EXPORT_QUEUE__LIMITS__NICE".to_owned(), "5".to_owned())]);
        parse(FILE, Path::new("/c.toml"), &env).unwrap()
    }

    #[test]
    fn every_value_is_shown_with_where_it_comes_from() {
        let loaded = loaded();
        let rows = Origins::of(&loaded).rows(&loaded.config);
        for (key, value, origin) in [
            ("limits.timeout", "\"1m 30s\"", "/c.toml"),
            ("limits.nice", "5", "environment EXPORT_QUEUE__LIMITS__NICE"),
            ("limits.kill_grace", "\"5s\"", "default"),
            ("queue.default.slots", "2", "default"),
            ("alias.\"e book\"", "\"epub\"", "/c.toml"),
            ("notify[1].url", "\"https://example.org\"", "/c.toml"),
            ("notify[1].on", "[]", "default"),
            ("format.epub.env.TOKEN", "\"***\"", "/c.toml"),
        ] {
            let row = (key.to_owned(), value.to_owned(), origin.to_owned());
            assert!(rows.contains(&row), "{row:?} in {rows:#?}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for origin in [false, true] {
            let text = show(&loaded(), origin);
            assert!(!["s3cr", "pst", "hush"].iter().any(|secret| text.contains(secret)), "{text}");
            assert!(text.contains("postgres://queue:***@db/exports?sslmode=require&sslpassword=***"));
        }
    }

    #[test]
    fn passwords_are_hidden_wherever_a_url_holds_them() {
        for (url, shown) in [
            ("postgres://db/x", "postgres://db/x"),
            ("postgres://q@db/x", "postgres://q@db/x"),
            ("postgres://q:p@db/x", "postgres://q:***@db/x"),
            ("postgres://q:p@ss/w@db:5432/x", "postgres://q:***@db:5432/x"),
            ("postgresql://db/x?user=q&password=p", "postgresql://db/x?user=q&password=***"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn what_is_shown_reads_again_as_the_same_configuration() {
        let mut expected = loaded().config;
        expected.database = Some("postgres://queue:***@db/exports?sslmode=require&sslpassword=***".to_owned());
        let secrets = expected.format.values_mut().flat_map(|format| format.env.values_mut());
        secrets.for_each(|secret| "***".clone_into(secret));
        for origin in [false, true] {
            let text = show(&loaded(), origin);
            let again = parse(&text, Path::new("/c.toml"), &BTreeMap::new()).unwrap();
            assert_eq!(again.config, expected, "{text}");
        }
    }

    #[test]
    fn an_origin_stands_behind_each_value() {
        let text = show(&loaded(), true);
        assert!(text.contains("\ntimeout = \"1m 30s\"  # /c.toml\n"), "{text}");
        let values = text.lines().filter(|line| line.contains(" = "));
        assert!(values.clone().count() > 50 && values.into_iter().all(|line| line.contains("  # ")));
    }
}
