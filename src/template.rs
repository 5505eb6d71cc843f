//! The command templates: arguments with `{placeholders}`.
//!
//! Owns the list of placeholders and the rule that tells one from a plain brace. Promises that each placeholder is
//! replaced once, inside its own argument: what it stands for is never expanded again, never split, never shown to a
//! shell. Does not know which placeholders make sense where; `config` decides that.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// Something that stands in a template for a value of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placeholder {
    /// The title as it is.
    Title,
    /// The title made safe for one path component.
    TitlePath,
    /// The language.
    Lang,
    /// The font.
    Font,
    /// The format's name.
    Format,
    /// The value of one option.
    Opt(String),
    /// The absolute path the exporter writes to, with the real extension.
    Output,
    /// The private copy of the base.
    Input,
    /// The private directory of the run.
    Workdir,
    /// The directory for temporary files of the run.
    Tmpdir,
    /// The name of the file in the cache.
    Filename,
    /// The number of the job.
    JobId,
    /// The number of the attempt, from 1.
    Attempt,
    /// The state that is told of; only in `[[notify]]`.
    State,
    /// Why a job failed; only in `[[notify]]`.
    Reason,
    /// The same in words; only in `[[notify]]`.
    Detail,
    /// What the caller wants to have back, JSON; only in `[[notify]]`.
    Meta,
}

const NAMES: [(&str, Placeholder); 16] = [
    ("title", Placeholder::Title),
    ("title:path", Placeholder::TitlePath),
    ("lang", Placeholder::Lang),
    ("font", Placeholder::Font),
    ("format", Placeholder::Format),
    ("output", Placeholder::Output),
    ("input", Placeholder::Input),
    ("workdir", Placeholder::Workdir),
    ("tmpdir", Placeholder::Tmpdir),
    ("filename", Placeholder::Filename),
    ("job_id", Placeholder::JobId),
    ("attempt", Placeholder::Attempt),
    ("state", Placeholder::State),
    ("reason", Placeholder::Reason),
    ("detail", Placeholder::Detail),
    ("meta", Placeholder::Meta),
];

impl Placeholder {
    fn named(name: &str) -> Option<Self> {
        if let Some(option) = name.strip_prefix("opt.") {
            return (!option.is_empty()).then(|| Self::Opt(option.to_owned()));
        }
        let found = NAMES.iter().find(|(text, _)| *text == name)?;
        Some(found.1.clone())
    }
}

impl fmt::Display for Placeholder {
    /// Writes the placeholder as it stands in a template, braces included.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opt(name) => write!(f, "{{opt.{name}}}"),
            plain => {
                let found = NAMES.iter().find(|(_, placeholder)| placeholder == plain);
                write!(f, "{{{}}}", found.map_or("", |(text, _)| text))
            }
        }
    }
}

/// A piece of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text that stands for itself.
    Text(String),
    /// A place that a value of the job is put into.
    Slot(Placeholder),
}

/// One argument of a command, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The pieces in their order; two texts never touch.
    pub parts: Vec<Part>,
}

/// A `{name}` that looks like a placeholder and is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPlaceholder {
    /// The name between the braces.
    pub name: String,
    /// The placeholder that was probably meant, without braces.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownPlaceholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown placeholder `{{{}}}`", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(f, ": did you mean `{{{nearest}}}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownPlaceholder {}

/// What the placeholders stand for in one run.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// The title.
    pub title: &'a str,
    /// The language.
    pub lang: &'a str,
    /// The font.
    pub font: &'a str,
    /// The format's name.
    pub format: &'a str,
    /// The options of the key; one that is not here is replaced by nothing.
    pub options: &'a BTreeMap<String, String>,
    /// Where the exporter writes.
    pub output: &'a Path,
    /// The copy of the base; without a base `{input}` is replaced by nothing.
    pub input: Option<&'a Path>,
    /// The private directory of the run.
    pub workdir: &'a Path,
    /// The directory for temporary files.
    pub tmpdir: &'a Path,
    /// The name of the file in the cache.
    pub filename: &'a str,
    /// The number of the job.
    pub job_id: i64,
    /// The number of the attempt.
    pub attempt: u32,
    /// The state that is told of.
    pub state: &'a str,
    /// Why a job failed.
    pub reason: &'a str,
    /// The same in words.
    pub detail: &'a str,
    /// What the caller wants to have back, JSON.
    pub meta: &'a str,
}

impl Template {
    /// Takes one argument apart; only `{name}` with a well-formed name is a placeholder, any other brace is text.
    pub fn parse(argument: &str) -> Result<Self, UnknownPlaceholder> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = argument;
        while let Some(at) = rest.find('{') {
            text.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            match placeholder_name(rest) {
                Some(name) => {
                    let slot = Placeholder::named(name).ok_or_else(|| unknown(name))?;
                    push_text(&mut parts, &mut text);
                    parts.push(Part::Slot(slot));
                    rest = &rest[name.len() + 1..];
                }
                None => text.push('{'),
            }
        }
        text.push_str(rest);
        push_text(&mut parts, &mut text);
        Ok(Self { parts })
    }

    /// Puts the values into their places.
    pub fn render(&self, values: &Values) -> OsString {
        let mut argument = OsString::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => argument.push(text),
                Part::Slot(slot) => push_value(&mut argument, slot, values),
            }
        }
        argument
    }

    /// Lists the placeholders in their order, each as often as it stands there.
    pub fn slots(&self) -> impl Iterator<Item = &Placeholder> {
        self.parts.iter().filter_map(|part| match part {
            Part::Slot(slot) => Some(slot),
            Part::Text(_) => None,
        })
    }
}

fn push_text(parts: &mut Vec<Part>, text: &mut String) {
    if !text.is_empty() {
        parts.push(Part::Text(std::mem::take(text)));
    }
}

fn push_value(argument: &mut OsString, slot: &Placeholder, values: &Values) {
    match slot {
        Placeholder::Title => argument.push(values.title),
        Placeholder::TitlePath => argument.push(title_as_path(values.title)),
        Placeholder::Lang => argument.push(values.lang),
        Placeholder::Font => argument.push(values.font),
        Placeholder::Format => argument.push(values.format),
        Placeholder::Opt(name) => {
            argument.push(values.options.get(name).map_or("", String::as_str));
        }
        Placeholder::Output => argument.push(values.output),
        Placeholder::Input => argument.push(values.input.unwrap_or(Path::new(""))),
        Placeholder::Workdir => argument.push(values.workdir),
        Placeholder::Tmpdir => argument.push(values.tmpdir),
        Placeholder::Filename => argument.push(values.filename),
        Placeholder::JobId => argument.push(values.job_id.to_string()),
        Placeholder::Attempt => argument.push(values.attempt.to_string()),
        Placeholder::State => argument.push(values.state),
        Placeholder::Reason => argument.push(values.reason),
        Placeholder::Detail => argument.push(values.detail),
        Placeholder::Meta => argument.push(values.meta),
    }
}

/// Gives the name that `rest` (what follows a `{`) begins with, if a `}` ends it.
fn placeholder_name(rest: &str) -> Option<&str> {
    let name = &rest[..rest.find('}')?];
    let well_formed = name.strip_prefix("opt.").map_or_else(
        || is_plain_name(name),
        |option| option.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-:".contains(&byte)),
    );
    well_formed.then_some(name)
}

fn is_plain_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_:.".contains(&byte);
    name.bytes().all(is_letter) && name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
}

fn unknown(name: &str) -> UnknownPlaceholder {
    let names = NAMES.iter().map(|(text, _)| *text);
    UnknownPlaceholder { name: name.to_owned(), nearest: nearest(name, names).map(str::to_owned) }
}

/// Makes a title safe for one path component; different titles stay different, nothing is cut.
pub fn title_as_path(title: &str) -> String {
    let mut path = String::with_capacity(title.len());
    for (at, letter) in title.char_indices() {
        match letter {
            '%' => path.push_str("%25"),
            '/' => path.push_str("%2F"),
            '\\' => path.push_str("%5C"),
            '.' if at == 0 => path.push_str("%2E"),
            '-' if at == 0 => path.push_str("%2D"),
            other => path.push(other),
        }
    }
    path
}

/// Finds the name that was probably meant, if one is near enough.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_ascii_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&wanted, &known.to_ascii_lowercase());
    names
        .into_iter()
        .map(|known| (distance(known), known))
        .filter(|(distance, known)| *distance <= (known.len().max(name.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_values<T>(title: &str, use_them: impl FnOnce(&Values) -> T) -> T {
        let options = BTreeMap::from([("images".to_owned(), "{title}".to_owned())]);
        use_them(&Values {
            title,
            lang: "en",
            font: "default",
            format: "epub",
            options: &options,
            output: Path::new("/w/out.epub"),
            input: Some(Path::new("/w/in.html")),
            workdir: Path::new("/w"),
            tmpdir: Path::new("/w/tmp"),
            filename: "A-en-default-0.epub",
            job_id: 7,
            attempt: 2,
            reason: "exit_nonzero",
            detail: "exit 1",
            meta: "[1]",
            state: "ready",
        })
    }

    fn rendered(argument: &str, title: &str) -> String {
        let template = Template::parse(argument).unwrap();
        with_values(title, |values| template.render(values)).into_string().unwrap()
    }

    #[test]
    fn every_placeholder_is_replaced_by_its_value() {
        for (argument, expected) in [
            ("{title}", "A/B"),
            ("/srv/{title:path}.md", "/srv/A%2FB.md"),
            ("{lang}-{font}.{format}", "en-default.epub"),
            ("--output={output}", "--output=/w/out.epub"),
            ("{input}", "/w/in.html"),
            ("{workdir}:{tmpdir}", "/w:/w/tmp"),
            ("{filename}", "A-en-default-0.epub"),
            ("{job_id}.{attempt}", "7.2"),
            ("{state}", "ready"),
        ] {
            assert_eq!(rendered(argument, "A/B"), expected, "{argument}");
        }
    }

    #[test]
    fn what_a_placeholder_stands_for_is_never_expanded_again() {
        assert_eq!(rendered("{title}", "{output} $(x) {lang}"), "{output} $(x) {lang}");
        assert_eq!(rendered("{opt.images}", "x"), "{title}");
    }

    #[test]
    fn any_other_brace_is_text() {
        for argument in ["{", "}", "{}", "{ title }", "{Title}", "${HOME", "{\"a\": 1}", "{1}", "{title", "{a-b}"] {
            assert_eq!(rendered(argument, "x"), argument);
        }
        assert_eq!(rendered("{{title}}", "x"), "{x}");
        assert_eq!(rendered("{ {lang}", "x"), "{ en");
    }

    #[test]
    fn option_names_may_hold_capitals_and_dashes() {
        let parsed = Template::parse("{opt.Page-Size}").unwrap();
        assert_eq!(parsed.parts, [Part::Slot(Placeholder::Opt("Page-Size".to_owned()))]);
    }

    #[test]
    fn an_unknown_placeholder_is_refused_with_the_nearest_name() {
        for (argument, nearest) in [
            ("{titel}", Some("title")),
            ("{ouput}", Some("output")),
            ("{title:pth}", Some("title:path")),
            ("{jobid}", Some("job_id")),
            ("{opt.}", None),
            ("{colour_of_the_sky}", None),
        ] {
            let error = Template::parse(argument).unwrap_err();
            assert_eq!(error.nearest.as_deref(), nearest, "{argument}");
        }
        let error = Template::parse("{titel}").unwrap_err();
        assert_eq!(error.to_string(), "unknown placeholder `{titel}`: did you mean `{title}`?");
    }

    #[test]
    fn a_placeholder_reads_back_as_it_was_written() {
        for (name, placeholder) in NAMES {
            assert_eq!(placeholder.to_string(), format!("{{{name}}}"));
            assert_eq!(Placeholder::named(name), Some(placeholder));
        }
        assert_eq!(Placeholder::Opt("a".to_owned()).to_string(), "{opt.a}");
    }

    #[test]
    fn a_title_becomes_one_path_component() {
        for (title, path) in [
            ("War and Peace", "War and Peace"),
            ("A/B", "A%2FB"),
            ("A\\B", "A%5CB"),
            ("..", "%2E."),
            ("../../x", "%2E.%2F..%2Fx"),
            ("..%2f..%2fx", "%2E.%252f..%252fx"),
            ("-rf", "%2Drf"),
            (".hidden", "%2Ehidden"),
            ("a.b-c", "a.b-c"),
        ] {
            assert_eq!(title_as_path(title), path);
        }
        assert_eq!(title_as_path(&"語".repeat(300)).len(), 900);
    }

    proptest! {
        #[test]
        fn different_titles_have_different_paths(a in "[-./%2F\\\\xé]{1,8}", b in "[-./%2F\\\\xé]{1,8}") {
            prop_assert_eq!(a == b, title_as_path(&a) == title_as_path(&b));
            prop_assert!(!title_as_path(&a).contains(['/', '\\']));
            prop_assert!(!title_as_path(&a).starts_with(['.', '-']));
        }

        #[test]
        fn a_template_without_braces_renders_as_itself(text in "[^{}]*") {
            prop_assert_eq!(rendered(&text, "x"), text);
        }
    }
}
