//! The configuration: every key that INTERFACE names, its default and what it means.
//!
//! Owns the types, the questions others ask of them (what bounds a format, what it is made from), and through its
//! rooms how a configuration is read (`load`), judged (`validate`) and shown (`show`). Promises that a `Config` that
//! came out of [`load`] is sound: names are safe as file names, every reference leads somewhere, every command can
//! be rendered. Reads one file and the environment it is given; looks at no other part of the machine.

mod commands;
mod format;
mod load;
mod overrides;
mod place;
mod show;
mod tables;
mod validate;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::template::{Placeholder, Template};

pub use commands::warnings;
pub use format::{Format, Limits};
pub use load::{Loaded, environment, load, parse, path_in_force};
pub use place::ConfigError;
pub use show::{Origins, show};
pub use tables::{
    Allow, Bypass, Cache, Defaults, Deny, Failures, History, LangDefaults, Node, Notify, OptionSpec, Queue,
};
pub use validate::is_plain_value;
use values::secs;
pub use values::{Bytes, Check, FirstLetter, MaxAge, Mode, Span, TitleRules, TtlFrom};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Holds the database, slot locks and logs; its owner is the user who runs exports.
    pub state_dir: PathBuf,
    /// The group of published files; without it the group of `state_dir`.
    #[serde(deserialize_with = "values::none_if_empty")]
    pub group: Option<String>,
    /// A PostgreSQL URL; without it SQLite in `state_dir`.
    #[serde(deserialize_with = "values::none_if_empty")]
    pub database: Option<String>,
    /// Where files are published and for how long.
    pub cache: Cache,
    /// What a selection means that does not say.
    pub defaults: Defaults,
    /// Other defaults for one language.
    pub lang: BTreeMap<String, LangDefaults>,
    /// The languages and fonts that may be asked for.
    pub allow: Allow,
    /// The options that commands may name.
    pub options: BTreeMap<String, OptionSpec>,
    /// Other names of formats.
    pub alias: BTreeMap<String, String>,
    /// Titles that are refused.
    pub deny: Vec<Deny>,
    /// The queues; `default` is always there.
    pub queue: BTreeMap<String, Queue>,
    /// The way of small books into a queue of their own.
    pub bypass: Option<Bypass>,
    /// The bounds of a run, unless its format says otherwise.
    pub limits: Limits,
    /// How failures are kept and retried.
    pub failures: Failures,
    /// How long finished runs are remembered.
    pub history: History,
    /// What nodes that share a database agree on.
    pub node: Node,
    /// The formats that can be made.
    pub format: BTreeMap<String, Format>,
    /// Who is told of what.
    pub notify: Vec<Notify>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/export-queue"),
            group: None,
            database: None,
            cache: Cache::default(),
            defaults: Defaults::default(),
            lang: BTreeMap::new(),
            allow: Allow::default(),
            options: BTreeMap::new(),
            alias: BTreeMap::new(),
            deny: Vec::new(),
            queue: BTreeMap::from([("default".to_owned(), Queue::default())]),
            bypass: None,
            limits: Limits::default(),
            failures: Failures::default(),
            history: History::default(),
            node: Node::default(),
            format: BTreeMap::new(),
            notify: Vec::new(),
        }
    }
}

impl Config {
    /// Gives the bounds of a format's runs.
    pub fn format_limits(&self, format: &str) -> Limits {
        match self.format.get(format) {
            Some(format) => format.limits(&self.limits),
            None => self.limits.clone(),
        }
    }

    /// Gives the extension of a format's files, without the dot.
    pub fn extension(&self, format: &str) -> String {
        let own = self.format.get(format).and_then(|format| format.extension.clone());
        own.unwrap_or_else(|| format.to_owned())
    }

    /// Gives the built-in check of a format's files.
    pub fn check_of(&self, format: &str) -> Check {
        let own = self.format.get(format).and_then(|format| format.check);
        own.unwrap_or_else(|| Check::for_extension(&self.extension(format)))
    }

    /// Gives the queue that a format's jobs wait in.
    pub fn queue_of_format(&self, format: &str) -> &str {
        self.format.get(format).map_or("default", |format| &format.queue)
    }

    /// Lists the notifications by command, each with its name.
    pub fn listeners(&self) -> impl Iterator<Item = (String, &Notify)> {
        let numbered = self.notify.iter().enumerate().filter(|(_, notify)| !notify.command.is_empty());
        numbered.map(|(at, notify)| (notify.name.clone().unwrap_or_else(|| (at + 1).to_string()), notify))
    }

    /// Lists a format, its base, the base of that and so on; nothing for a format that is not configured.
    pub fn chain(&self, format: &str) -> Vec<&str> {
        let mut chain: Vec<&str> = Vec::new();
        let mut next = Some(format);
        while let Some((name, format)) = next.and_then(|name| self.format.get_key_value(name)) {
            if chain.contains(&name.as_str()) {
                break;
            }
            chain.push(name);
            next = format.base.as_deref();
        }
        chain
    }

    /// Names the options that some command of a format's chain uses.
    pub fn options_of(&self, format: &str) -> BTreeSet<String> {
        let chain = self.chain(format);
        let formats = chain.iter().filter_map(|name| self.format.get(*name));
        let parsed = formats.flat_map(Format::arguments).filter_map(|(_, _, text)| Template::parse(text).ok());
        parsed.flat_map(|template| template.slots().filter_map(option_name).collect::<Vec<_>>()).collect()
    }
}

fn option_name(slot: &Placeholder) -> Option<String> {
    let Placeholder::Opt(name) = slot else {
        return None;
    };
    Some(name.clone())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(text: &str) -> Config {
        parse(text, Path::new("/c/config.toml"), &BTreeMap::new()).unwrap().config
    }

    const CHAIN: &str = r#"
        [options.images]
        values = ["true"]
        default = "true"
        [options.size]
        values = ["a5"]
        default = "a5"
        [limits]
        timeout = "2m"
        nice = 5
        [format.epub]
        command = ["x", "{output}"]
        verify = ["y", "{opt.images}"]
        [format.azw3]
        base = "epub"
        command = ["x", "{input}", "{output}"]
        [format.pdf-a5]
        base = "azw3"
        command = ["x", "{input}", "--size={opt.size}"]
        produces = "{workdir}/*.pdf"
        extension = "PDF"
        timeout = 10
        queue = "express"
        [queue.express]
        "#;

    #[test]
    fn an_empty_file_is_all_defaults() {
        assert_eq!(parsed(""), Config::default());
        assert!(Config::default().queue.contains_key("default"));
        assert!(parsed("[queue.express]").queue.contains_key("default"));
    }

    #[test]
    fn every_key_of_the_interface_is_known() {
        let text = include_str!("interface.toml").replace("# database = ", "database = ");
        let config = parsed(&text);
        assert_eq!(config.queue["default"], Queue::default());
        assert_eq!(config.limits, Limits::default());
        assert_eq!((&config.cache, &config.failures), (&Cache::default(), &Failures::default()));
        assert_eq!((&config.history, &config.node), (&History::default(), &Node::default()));
        assert_eq!(config.defaults, Defaults::default());
        let epub = Format {
            command: Vec::new(),
            verify: Vec::new(),
            extension: None,
            check: None,
            ..config.format["epub"].clone()
        };
        assert_eq!(epub, Format::default());
    }

    #[test]
    fn a_format_overrides_the_limits_it_names() {
        let config = parsed(CHAIN);
        let limits = config.format_limits("pdf-a5");
        assert_eq!((limits.timeout, limits.nice), (secs(10), 5));
        assert_eq!(config.format_limits("epub").timeout, secs(120));
        assert_eq!(config.format_limits("nothing"), config.limits);
    }

    #[test]
    fn a_format_has_the_extension_check_and_queue_of_its_name_or_its_own() {
        let config = parsed(CHAIN);
        assert_eq!((config.extension("epub").as_str(), config.check_of("epub")), ("epub", Check::Epub));
        assert_eq!((config.extension("pdf-a5").as_str(), config.check_of("pdf-a5")), ("PDF", Check::Pdf));
        assert_eq!((config.queue_of_format("pdf-a5"), config.queue_of_format("epub")), ("express", "default"));
    }

    #[test]
    fn a_chain_goes_from_a_format_to_its_last_base() {
        let config = parsed(CHAIN);
        assert_eq!(config.chain("pdf-a5"), ["pdf-a5", "azw3", "epub"]);
        assert_eq!(config.chain("nothing"), [""; 0]);
        assert_eq!(config.options_of("pdf-a5"), BTreeSet::from(["images".to_owned(), "size".to_owned()]));
        assert_eq!(config.options_of("epub"), BTreeSet::from(["images".to_owned()]));
    }

    #[test]
    fn a_circle_of_bases_does_not_hang_the_chain() {
        let mut config = parsed(CHAIN);
        config.format.get_mut("epub").unwrap().base = Some("azw3".to_owned());
        assert_eq!(config.chain("pdf-a5"), ["pdf-a5", "azw3", "epub"]);
    }
}
