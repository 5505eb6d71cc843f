//! The lines of a front end that polls: `status TITLE` and `request TITLE`, with a variant.
//!
//! To build the whole command line for them takes a fifth of such a call. These lines, and only these, are read by hand;
//! whatever is not exactly of that form, every error too, is [`super::Cli`]'s. A test holds both against each other.

use std::ffi::OsString;

use super::{Cli, Color, Command, Global, Select, Terms, Variant, key_value};

/// Reads a line, without the program's name, as clap would; `None` when it is not of that form.
pub fn read(line: impl IntoIterator<Item = OsString>) -> Option<Cli> {
    let mut words = line.into_iter();
    let mut global =
        Global { config: None, json: false, exit_zero: false, quiet: false, verbose: 0, color: Color::Auto };
    let mut select = Select { title: None, title_file: None, id: None, filename: None, variant: Variant::default() };
    let mut command = None;
    while let Some(word) = words.next() {
        let word = word.into_string().ok()?;
        let mut value = || words.next()?.into_string().ok().filter(|text| is_plain(text));
        let variant = &mut select.variant;
        match (word.as_str(), command) {
            ("--config", _) => once(&mut global.config, value()?.into())?,
            ("--json", _) => flag(&mut global.json)?,
            ("--exit-zero", _) => flag(&mut global.exit_zero)?,
            ("--quiet" | "-q", _) => flag(&mut global.quiet)?,
            ("--lang", Some(_)) => once(&mut variant.lang, value()?)?,
            ("--font", Some(_)) => once(&mut variant.font, value()?)?,
            ("--format", Some(_)) => once(&mut variant.format, value()?)?,
            ("--opt", Some(_)) => variant.options.push(key_value(&value()?).ok()?),
            ("--", Some(_)) => {
                once(&mut select.title, words.next()?.into_string().ok()?)?;
                if words.next().is_some() {
                    return None;
                }
            }
            ("status", None) => command = Some(Polled::Status),
            ("request", None) => command = Some(Polled::Request),
            (title, Some(_)) if is_plain(title) => once(&mut select.title, title.to_owned())?,
            _ => return None,
        }
    }
    select.title.as_ref()?;
    let command = match command? {
        Polled::Status => Command::Status { select, wait: None },
        Polled::Request => {
            Command::Request { select, wait: None, terms: Terms::default(), batch: None, dry_run: false }
        }
    };
    Some(Cli { global, command })
}

#[derive(Clone, Copy)]
enum Polled {
    Status,
    Request,
}

/// Whether a word is a value in every place: not empty, no option.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-')
}

fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

fn flag(place: &mut bool) -> Option<()> {
    (!std::mem::replace(place, true)).then_some(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    /// What both make of a line: by hand only where clap makes the same of it.
    fn agree(line: &[&str]) -> bool {
        let by_hand = read(line.iter().map(OsString::from));
        let by_clap = Cli::try_parse_from(std::iter::once("export-queue").chain(line.iter().copied()));
        match by_hand {
            None => false,
            Some(cli) => {
                assert_eq!(format!("{cli:?}"), format!("{:?}", by_clap.expect("clap reads it too")), "{line:?}");
                true
            }
        }
    }

    #[test]
    fn the_lines_of_front_ends_are_read_by_hand() {
        for line in [
            &["status", "War and Peace"][..],
            &["--config", "/etc/x.toml", "--json", "status", "T", "--lang", "bn", "--font", "mukta", "--format", "pdf"],
            &["status", "--json", "--opt", "images=true", "--opt", "size=a=b", "--exit-zero", "--", "--version"],
            &["request", "--quiet", "--format", "epub", "--", "-"],
            &["-q", "request", "help"],
            &["request", "--", ""],
        ] {
            assert!(agree(line), "{line:?}");
        }
    }

    #[test]
    fn whatever_else_there_is_is_for_clap() {
        for line in [
            &["status"][..],
            &[],
            &["status", "a", "b"],
            &["status", "--", "a", "b"],
            &["status", "a", "--", "b"],
            &["status", "--id", "7"],
            &["status", "--lang=bn", "a"],
            &["status", "a", "--wait", "5"],
            &["request", "a", "--retry"],
            &["status", "a", "--lang", "--json"],
            &["status", "a", "--json", "--json"],
            &["status", "a", "--opt", "x"],
            &["status", "-h"],
            &["stat", "a"],
            &["list"],
            &["--lang", "bn", "status", "a"],
        ] {
            assert!(!agree(line), "{line:?}");
        }
    }

    const WORDS: &[&str] = &[
        "status",
        "request",
        "sweep",
        "--json",
        "--exit-zero",
        "-q",
        "--quiet",
        "-v",
        "--config",
        "x.toml",
        "--lang",
        "--font",
        "--format",
        "--opt",
        "a=b",
        "=",
        "epub",
        "--",
        "-",
        "",
        "--color",
        "never",
        "Война и мир",
        "--wait",
        "-x",
        "--id",
        "7",
        "--retry",
        "--lang=en",
        "-qv",
        "--help",
        "help",
    ];

    proptest! {
        #[test]
        fn what_is_read_by_hand_is_what_clap_reads(line in prop::collection::vec(prop::sample::select(WORDS), 0..8)) {
            agree(&line);
            let mut polled = vec!["status", "T"];
            polled.extend(&line);
            agree(&polled);
        }
    }
}
