//! The key: the canonical tuple title, language, font, format, options, and the filename made from it.
//!
//! Owns the way from what somebody asks for to a key, and from a key to its filename and back to the parts of it that a
//! filename tells. Promises that one key has one filename and different keys never share one, whatever a title
//! holds; that a filename is one path component far below 255 bytes; and that no locale has a say in any of it.
//! Does not know whether a file is there.

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::config::{Config, Defaults, Deny, FirstLetter, TitleRules, is_plain_value};
use crate::template::nearest;

/// The longest title, in bytes of UTF-8.
pub const MAX_TITLE_BYTES: usize = 1024;
const MAX_SLUG_BYTES: usize = 80;
const MAX_WORD_BYTES: usize = 24;
const MAX_EXTENSION_BYTES: usize = 16;
const HASH_DIGITS: usize = 32;
/// Goes into every hash; a change of the encoding must change it too.
const ENCODING: &[u8] = b"export-queue key 1\n";

/// What somebody asks for, before defaults and rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The title as it was given.
    pub title: String,
    /// The language, if it was given.
    pub lang: Option<String>,
    /// The font, if it was given.
    pub font: Option<String>,
    /// The format or an alias, if it was given.
    pub format: Option<String>,
    /// The options as they were given, in that order.
    pub options: Vec<(String, String)>,
}

/// The canonical tuple; one key, one file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The title after the rules of `defaults.title_rules`.
    pub title: String,
    /// The language.
    pub lang: String,
    /// The font.
    pub font: String,
    /// The name of a configured format.
    pub format: String,
    /// All options that the commands of the format's chain name, and no others.
    pub options: BTreeMap<String, String>,
}

/// A selection that means no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// The asker must ask differently; nothing was stored.
    Usage(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Usage(message) = self;
        f.write_str(message)
    }
}

impl std::error::Error for KeyError {}

fn usage<T>(message: String) -> Result<T, KeyError> {
    Err(KeyError::Usage(message))
}

/// Makes the key that a selection means under a configuration.
pub fn resolve(config: &Config, selection: &Selection) -> Result<Key, KeyError> {
    let defaults = &config.defaults;
    let title = title_of(&selection.title, defaults)?;
    let lang = selection.lang.as_ref().unwrap_or(&defaults.lang);
    allowed("language", lang, config.allow.languages.as_deref())?;
    let own = config.lang.get(lang);
    let own_font = own.and_then(|own| own.font.as_ref());
    let font = selection.font.as_ref().or(own_font).unwrap_or(&defaults.font);
    allowed("font", font, config.allow.fonts.as_deref())?;
    let own_format = own.and_then(|own| own.format.as_ref());
    let format = selection.format.as_ref().or(own_format).unwrap_or(&defaults.format);
    let format = known_format(config, format)?;
    let options = known_options(config, &format, &selection.options)?;
    Ok(Key { title, lang: lang.clone(), font: font.clone(), format, options })
}

/// Finds the rule that refuses a title, if one does.
pub fn denied<'c>(config: &'c Config, title: &str) -> Option<&'c Deny> {
    let refuses = |deny: &&Deny| Regex::new(&deny.title).is_ok_and(|pattern| pattern.is_match(title));
    config.deny.iter().find(refuses)
}

/// A title in its one form under a configuration.
fn title_of(title: &str, defaults: &Defaults) -> Result<String, KeyError> {
    let title = canonical_title(title, defaults.title_rules)?;
    match (defaults.title_rules, defaults.title_first_letter) {
        (TitleRules::Mediawiki, FirstLetter::Capital) => canonical_title(&capitalized(&title), defaults.title_rules),
        (TitleRules::Mediawiki, FirstLetter::AsIs) | (TitleRules::Exact, _) => Ok(title),
    }
}

/// A title with a capital at its beginning; a letter whose capital is more than one letter (`ß`) stays.
fn capitalized(title: &str) -> String {
    let mut letters = title.chars();
    let Some(first) = letters.next() else {
        return String::new();
    };
    let mut capital = first.to_uppercase();
    let capital = if capital.len() == 1 { capital.next() } else { None };
    std::iter::once(capital.unwrap_or(first)).chain(letters).collect()
}

/// Brings a title into its one form; fails when it is no title.
pub fn canonical_title(title: &str, rules: TitleRules) -> Result<String, KeyError> {
    let is_refused = |letter: &char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    if let Some(letter) = title.chars().find(is_refused) {
        return usage(format!("the title holds the control character U+{:04X}", u32::from(letter)));
    }
    let title: String = match rules {
        TitleRules::Exact if title.is_ascii() => title.to_owned(),
        TitleRules::Exact => title.nfc().collect(),
        TitleRules::Mediawiki => {
            let without_marks: String = title.chars().filter(|letter| !is_direction_mark(*letter)).nfc().collect();
            let is_blank = |letter: char| letter == '_' || letter.is_whitespace();
            without_marks.split(is_blank).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        }
    };
    if title.trim().is_empty() {
        return usage("the title is empty".to_owned());
    }
    if title.len() > MAX_TITLE_BYTES {
        return usage(format!("the title has {} bytes, at most {MAX_TITLE_BYTES} are allowed", title.len()));
    }
    Ok(title)
}

/// The marks that MediaWiki strips from titles.
fn is_direction_mark(letter: char) -> bool {
    matches!(letter, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}')
}

fn allowed(kind: &str, value: &str, list: Option<&[String]>) -> Result<(), KeyError> {
    match list {
        Some(list) if list.iter().any(|known| known == value) => Ok(()),
        Some(list) => usage(format!("unknown {kind} {value:?}: {}", choices(value, list.iter().map(String::as_str)))),
        None if is_plain_value(value) => Ok(()),
        None => usage(format!("{value:?} is no {kind}: 1 to 64 of A-Z a-z 0-9 blank _ . -, a letter or digit first")),
    }
}

/// Finds the format by its name or alias, exactly as written or else in small letters.
fn known_format(config: &Config, name: &str) -> Result<String, KeyError> {
    for spelling in [name.to_owned(), name.to_ascii_lowercase()] {
        if config.format.contains_key(&spelling) {
            return Ok(spelling);
        }
        if let Some(format) = config.alias.get(&spelling) {
            return Ok(format.clone());
        }
    }
    let known = config.format.keys().chain(config.alias.keys()).map(String::as_str);
    usage(format!("unknown format {name:?}: {}", choices(name, known)))
}

fn known_options(
    config: &Config,
    format: &str,
    given: &[(String, String)],
) -> Result<BTreeMap<String, String>, KeyError> {
    let used = config.options_of(format);
    let mut options = BTreeMap::new();
    for (name, value) in given {
        let Some(spec) = config.options.get(name).filter(|_| used.contains(name)) else {
            let kind = if config.options.contains_key(name) { "useless" } else { "unknown" };
            let choices = choices(name, used.iter().map(String::as_str));
            return usage(format!("{kind} option {name:?} for format `{format}`: {choices}"));
        };
        if !spec.values.contains(value) {
            let choices = choices(value, spec.values.iter().map(String::as_str));
            return usage(format!("option `{name}` cannot be {value:?}: {choices}"));
        }
        let before = options.insert(name.clone(), value.clone());
        if before.is_some_and(|before| before != *value) {
            return usage(format!("option `{name}` is given twice, with different values"));
        }
    }
    for name in used {
        if let Some(spec) = config.options.get(&name) {
            options.entry(name).or_insert_with(|| spec.default.clone());
        }
    }
    Ok(options)
}

/// Says what there is to choose from, and what was probably meant.
fn choices<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    if known.is_empty() {
        return "there are none".to_owned();
    }
    let all = format!("there are {}", known.join(", "));
    match nearest(name, known) {
        Some(near) => format!("{all}; did you mean `{near}`?"),
        None => all,
    }
}

impl Key {
    /// Makes the filename `SLUG-LANG-FONT-HASH.EXT`; EXT is the extension of the key's format.
    pub fn filename(&self, extension: &str) -> String {
        let (lang, font) = (word(&self.lang), word(&self.font));
        format!("{}-{lang}-{font}-{}.{extension}", slug(&self.title), self.hash())
    }

    /// Makes the key of the base that this key's format is made from, if it has one.
    pub fn base(&self, config: &Config) -> Option<Self> {
        let format = config.format.get(&self.format)?.base.clone()?;
        let used = config.options_of(&format);
        let options = self.options.iter().filter(|(name, _)| used.contains(*name));
        let options = options.map(|(name, value)| (name.clone(), value.clone())).collect();
        Some(Self { format, options, ..self.clone() })
    }

    /// Writes the options as JSON, names in order, without blanks.
    pub fn options_json(&self) -> String {
        let pairs = self.options.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        serde_json::Value::Object(pairs.collect()).to_string()
    }

    /// Hashes the whole tuple, every part with its length before it, so that no two tuples read alike.
    fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(ENCODING);
        let tuple = [&self.title, &self.lang, &self.font, &self.format];
        let options = self.options.iter().flat_map(|(name, value)| [name, value]);
        for part in tuple.into_iter().chain(options) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let mut digits = hasher.finalize().to_hex().to_string();
        digits.truncate(HASH_DIGITS);
        digits
    }
}

fn is_slug_letter(letter: char) -> bool {
    matches!(letter, '_' | '.' | '-') || letter.is_alphanumeric() || is_combining_mark(letter)
}

fn slug(title: &str) -> String {
    let mut slug = String::new();
    for letter in title.chars().map(|letter| if is_slug_letter(letter) { letter } else { '_' }) {
        let letter = if slug.is_empty() && matches!(letter, '.' | '-') { '_' } else { letter };
        if slug.len() + letter.len_utf8() > MAX_SLUG_BYTES {
            break;
        }
        slug.push(letter);
    }
    if slug.is_empty() { "_".to_owned() } else { slug }
}

fn is_word_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-')
}

fn word(text: &str) -> String {
    let letters = text.chars().map(|letter| if is_word_letter(letter) { letter } else { '_' });
    letters.take(MAX_WORD_BYTES).collect()
}

/// What a filename tells of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameParts<'a> {
    /// The 32 hex digits.
    pub hash: &'a str,
    /// The extension, without the dot.
    pub ext: &'a str,
}

/// Takes a filename apart; none when it is not exactly of the form that [`Key::filename`] makes.
pub fn parse_filename(filename: &str) -> Option<NameParts<'_>> {
    let (stem, ext) = filename.rsplit_once('.')?;
    let (cosmetic, hash) = stem.rsplit_once('-')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_ours = (1..=MAX_EXTENSION_BYTES).contains(&ext.len())
        && ext.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && hash.len() == HASH_DIGITS
        && hash.bytes().all(is_hex)
        && is_cosmetic(cosmetic);
    is_ours.then_some(NameParts { hash, ext })
}

/// Tells whether text can be SLUG-LANG-FONT; each of them may hold dashes itself.
fn is_cosmetic(text: &str) -> bool {
    let dashes = || text.match_indices('-').map(|(at, _)| at);
    let is_word = |word: &str| (1..=MAX_WORD_BYTES).contains(&word.len()) && word.chars().all(is_word_letter);
    let is_slug = |slug: &str| (1..=MAX_SLUG_BYTES).contains(&slug.len()) && slug.chars().all(is_slug_letter);
    let splits =
        dashes().flat_map(|first| dashes().filter(move |second| *second > first).map(move |second| (first, second)));
    let mut parts = splits.map(|(first, second)| (&text[..first], &text[first + 1..second], &text[second + 1..]));
    !text.starts_with(['.', '-']) && parts.any(|(slug, lang, font)| is_slug(slug) && is_word(lang) && is_word(font))
}

/// Tells whether a filename is exactly of the form that [`Key::filename`] makes.
pub fn is_published_name(filename: &str) -> bool {
    parse_filename(filename).is_some()
}

/// Gives the shard that a file lies in, the first two digits of its hash; empty for a name that is not ours.
pub fn shard(filename: &str) -> &str {
    parse_filename(filename).map_or("", |parts| &parts.hash[..2])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse;
    use proptest::prelude::*;

    const EXAMPLE: &str = r#"
        [options.images]
        values = ["true", "false"]
        default = "true"
        [options.size]
        values = ["a4", "a5"]
        default = "a4"
        [options.lonely]
        values = ["x"]
        default = "x"
        [alias]
        ebook = "epub"
        [lang.bn]
        font = "mukta"
        format = "pdf"
        [[deny]]
        title = "^Special:"
        message = "Special pages cannot be exported."
        [format.epub]
        command = ["make", "{output}", "{opt.images}"]
        [format.mobi]
        base = "epub"
        command = ["convert", "{input}", "{output}"]
        [format.pdf]
        base = "epub"
        command = ["convert", "{input}", "{output}", "--size={opt.size}"]
        "#;

    fn config(extra: &str) -> Config {
        let text = format!("{extra}\n{EXAMPLE}");
        parse(&text, Path::new("/c/config.toml"), &BTreeMap::new()).unwrap().config
    }

    fn selection(title: &str) -> Selection {
        Selection { title: title.to_owned(), ..Selection::default() }
    }

    fn key(title: &str) -> Key {
        resolve(&config(""), &selection(title)).unwrap()
    }

    fn name(title: &str) -> String {
        key(title).filename("epub")
    }

    fn with_format(format: &str) -> Result<Key, KeyError> {
        resolve(&config(""), &Selection { format: Some(format.to_owned()), ..selection("A") })
    }

    fn with_option(format: &str, name: &str, value: &str) -> Result<Key, KeyError> {
        let options = vec![(name.to_owned(), value.to_owned())];
        resolve(&config(""), &Selection { format: Some(format.to_owned()), options, ..selection("A") })
    }

    #[test]
    fn titles_with_slashes_and_dots_become_one_path_component() {
        for (title, slug) in [
            ("A/B", "A_B"),
            ("Faust/Kapitel 1", "Faust_Kapitel_1"),
            ("/", "_"),
            ("a//b", "a__b"),
            (".", "_"),
            ("..", "_."),
            (".hidden", "_hidden"),
            ("-rf", "_rf"),
            ("x", "x"),
            ("../../../../tmp/pwned", "_._.._.._.._tmp_pwned"),
            ("/etc/x", "_etc_x"),
            ("..%2f..%2fx", "_._2f.._2fx"),
            ("Война и мир", "Война_и_мир"),
            ("हिन्दी", "हिन्दी"),
            ("A.epub", "A.epub"),
            ("\u{202e}gpj", "_gpj"),
        ] {
            let name = name(title);
            assert!(name.starts_with(&format!("{slug}-en-default-")), "{title}: {name}");
            assert!(is_published_name(&name), "{name}");
        }
    }

    #[test]
    fn titles_that_are_safe_under_the_same_slug_have_different_names() {
        for (one, other) in [
            ("A/B", "A_B"),
            ("A/B", "A-B"),
            ("A_B", "A-B"),
            ("a?", "a#"),
            ("x (1/2)", "x (2/2)"),
            ("A", "a"),
            ("A", "A.epub"),
            ("A", "A "),
            ("é", "e"),
        ] {
            assert_ne!(name(one), name(other), "{one} {other}");
        }
    }

    #[test]
    fn two_spellings_of_one_letter_are_one_key() {
        assert_eq!(key("\u{e9}"), key("e\u{301}"));
    }

    #[test]
    fn long_titles_have_short_names_that_differ() {
        let agree = "a".repeat(250);
        let titles = [
            "a".repeat(255),
            "a".repeat(256),
            "a".repeat(1000),
            "a".repeat(1024),
            "я".repeat(128),
            "語".repeat(90),
            format!("a{}", "語".repeat(90)),
            format!("aa{}", "語".repeat(90)),
            format!("{agree}.part"),
            format!("{agree}.done"),
        ];
        let names: std::collections::BTreeSet<String> = titles.iter().map(|title| name(title)).collect();
        assert_eq!(names.len(), titles.len());
        assert!(names.iter().all(|name| name.len() <= 180 && is_published_name(name)));
    }

    #[test]
    fn what_is_no_title_is_refused() {
        let long = "a".repeat(1025);
        let long_in_nfc = "\u{958}".repeat(171); // 513 bytes as given, twice that in NFC
        for (title, part) in [
            ("", "empty"),
            (" ", "empty"),
            ("\u{a0}\u{3000}", "empty"),
            ("a\nb", "U+000A"),
            ("a\0b", "U+0000"),
            ("a\u{1b}[0m", "U+001B"),
            ("a\u{85}", "U+0085"),
            ("a\u{2028}b", "U+2028"),
            ("a\u{2029}b", "U+2029"),
            (&long, "1025 bytes"),
            (&long_in_nfc, "1026 bytes"),
        ] {
            let error = resolve(&config(""), &selection(title)).unwrap_err();
            assert!(error.to_string().contains(part), "{title:?}: {error}");
        }
    }

    #[test]
    fn exact_rules_keep_every_other_spelling_apart() {
        let spellings = ["War and Peace", "War_and_Peace", " War  and_Peace ", "war and Peace"];
        let keys: std::collections::BTreeSet<Key> = spellings.map(key).into();
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn mediawiki_rules_fold_blanks_and_underscores_and_keep_the_first_letter() {
        for (title, canonical) in [
            ("War_and_Peace", "War and Peace"),
            (" War  and_Peace ", "War and Peace"),
            ("__War\u{a0}_and\u{3000}Peace__", "War and Peace"),
            ("\u{200e}War and Peace\u{202c}", "War and Peace"),
            ("war_and_Peace", "war and Peace"),
            ("e\u{200e}\u{301}", "\u{e9}"),
        ] {
            assert_eq!(canonical_title(title, TitleRules::Mediawiki).unwrap(), canonical, "{title}");
        }
        for nothing in ["_", " _ ", "\u{200f}"] {
            assert!(canonical_title(nothing, TitleRules::Mediawiki).is_err());
        }
        let config = config("[defaults]\ntitle_rules = \"mediawiki\"");
        assert_eq!(resolve(&config, &selection("a_B")).unwrap().title, "a B");
    }

    #[test]
    fn the_first_letter_is_a_capital_where_a_wiki_says_so() {
        let config = config("[defaults]\ntitle_rules = \"mediawiki\"\ntitle_first_letter = \"capital\"");
        for (title, canonical) in [
            ("war_and_peace", "War and peace"),
            ("War and Peace", "War and Peace"),
            ("_élan", "Élan"),
            ("война и мир", "Война и мир"),
            ("ßa", "ßa"),
            ("ŉ", "ŉ"),
            ("ǆep", "Ǆep"),
            ("1984", "1984"),
            ("가", "가"),
        ] {
            let once = resolve(&config, &selection(title)).unwrap().title;
            assert_eq!(once, canonical);
            assert_eq!(resolve(&config, &selection(&once)).unwrap().title, once);
        }
        // Its capital has one byte more.
        assert!(resolve(&config, &selection(&format!("ɐ{}", "x".repeat(1022)))).is_err());
    }

    #[test]
    fn no_letter_changes_its_case_but_in_ascii_names_of_formats() {
        for title in ["INSTITUT", "İstanbul", "ıı", "ß", "İ"] {
            assert_eq!(key(title).title, title);
        }
        for (given, format) in [("EPUB", "epub"), ("MOBI", "mobi"), ("Pdf", "pdf"), ("EBook", "epub")] {
            assert_eq!(with_format(given).unwrap().format, format);
        }
        assert!(with_format("MOBİ").is_err());
    }

    #[test]
    fn an_alias_is_the_same_job_as_its_format() {
        assert_eq!(with_format("ebook"), with_format("epub"));
    }

    #[test]
    fn formats_languages_and_fonts_cannot_lead_elsewhere() {
        for wrong in ["../../../../tmp/pwned", "/etc/x", "..%2f..%2fx", "..", ".", "", " ", "-rf", "a/b", "a\nb"] {
            assert!(with_format(wrong).is_err(), "{wrong:?}");
            let lang = Selection { lang: Some(wrong.to_owned()), ..selection("A") };
            assert!(resolve(&config(""), &lang).is_err(), "{wrong:?}");
            let font = Selection { font: Some(wrong.to_owned()), ..selection("A") };
            assert!(resolve(&config(""), &font).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_unknown_format_is_answered_with_the_choices_and_the_nearest() {
        let error = with_format("epup").unwrap_err().to_string();
        assert_eq!(error, "unknown format \"epup\": there are epub, mobi, pdf, ebook; did you mean `epub`?");
    }

    #[test]
    fn a_language_brings_its_own_defaults_and_the_selection_beats_them() {
        let bengali = Selection { lang: Some("bn".to_owned()), ..selection("A") };
        let key = resolve(&config(""), &bengali).unwrap();
        assert_eq!((key.font.as_str(), key.format.as_str()), ("mukta", "pdf"));
        let own = Selection { font: Some("serif".to_owned()), format: Some("epub".to_owned()), ..bengali };
        let key = resolve(&config(""), &own).unwrap();
        assert_eq!((key.font.as_str(), key.format.as_str()), ("serif", "epub"));
    }

    #[test]
    fn only_listed_languages_and_fonts_are_allowed_where_there_is_a_list() {
        let config = config("[allow]\nlanguages = [\"en\", \"bn\"]\nfonts = [\"default\", \"mukta\"]");
        let french = Selection { lang: Some("be".to_owned()), ..selection("A") };
        let error = resolve(&config, &french).unwrap_err().to_string();
        assert_eq!(error, "unknown language \"be\": there are en, bn; did you mean `bn`?");
        let serif = Selection { font: Some("serif".to_owned()), ..selection("A") };
        assert!(resolve(&config, &serif).is_err());
    }

    #[test]
    fn a_key_has_all_options_of_its_chain_and_no_others() {
        let pdf = with_option("pdf", "size", "a5").unwrap();
        assert_eq!(pdf.options_json(), r#"{"images":"true","size":"a5"}"#);
        assert_eq!(with_format("epub").unwrap().options_json(), r#"{"images":"true"}"#);
        assert_eq!(with_option("epub", "images", "true"), with_format("epub"));
    }

    #[test]
    fn wrong_options_are_answered_with_the_choices() {
        for (format, name, value, message) in [
            (
                "epub",
                "imges",
                "true",
                "unknown option \"imges\" for format `epub`: there are images; did you mean `images`?",
            ),
            ("epub", "size", "a5", "useless option \"size\" for format `epub`: there are images"),
            ("pdf", "size", "a6", "option `size` cannot be \"a6\": there are a4, a5; did you mean `a4`?"),
        ] {
            assert_eq!(with_option(format, name, value).unwrap_err().to_string(), message);
        }
        let twice = vec![("size".to_owned(), "a4".to_owned()), ("size".to_owned(), "a5".to_owned())];
        let twice = Selection { format: Some("pdf".to_owned()), options: twice, ..selection("A") };
        assert!(resolve(&config(""), &twice).unwrap_err().to_string().contains("given twice"));
    }

    #[test]
    fn a_base_takes_only_the_options_its_own_chain_names() {
        let config = config("");
        let base = with_option("pdf", "size", "a5").unwrap().base(&config).unwrap();
        assert_eq!(base, with_format("epub").unwrap());
        assert_eq!(base.base(&config), None);
    }

    #[test]
    fn denied_titles_are_found() {
        let config = config("");
        assert!(denied(&config, "Special:Export").is_some_and(|deny| deny.message.starts_with("Special")));
        assert!(denied(&config, "Not Special:").is_none());
    }

    #[test]
    fn every_part_of_the_key_is_in_the_name() {
        let key = key("A");
        let others = [
            Key { title: "B".to_owned(), ..key.clone() },
            Key { lang: "fr".to_owned(), ..key.clone() },
            Key { font: "f".to_owned(), ..key.clone() },
            Key { format: "mobi".to_owned(), ..key.clone() },
            Key { options: BTreeMap::new(), ..key.clone() },
            Key { title: "Aen".to_owned(), lang: String::new(), ..key.clone() },
        ];
        for other in others {
            assert_ne!(key.filename("epub"), other.filename("epub"), "{other:?}");
        }
    }

    #[test]
    fn the_name_of_a_key_never_changes_between_releases() {
        let key = Key {
            title: "War and Peace".to_owned(),
            lang: "en".to_owned(),
            font: "Noto Sans/Bengali and much more".to_owned(),
            format: "epub".to_owned(),
            options: BTreeMap::from([("images".to_owned(), "true".to_owned())]),
        };
        assert_eq!(
            key.filename("epub"),
            "War_and_Peace-en-Noto_Sans_Bengali_and_mu-41e293be334dcd91df4c89c71774d0ce.epub"
        );
    }

    #[test]
    fn only_names_of_exactly_our_form_are_ours() {
        let hash = "3f9a0c51d2be4477a1b0c9d8e7f60512";
        let good = format!("War_and_Peace-en-default-{hash}.epub");
        assert_eq!(parse_filename(&good), Some(NameParts { hash, ext: "epub" }));
        assert_eq!(shard(&good), "3f");
        assert!(is_published_name(&format!("a-b-zh-hans-c-d-{hash}.azw3")));
        let long = "a".repeat(81);
        for wrong in [
            String::new(),
            ".lock".to_owned(),
            format!(".War-en-default-{hash}.epub"),
            format!("-en-default-{hash}.epub"),
            format!("A-default-{hash}.epub"),
            format!("A--default-{hash}.epub"),
            format!("A-en-default-{}.epub", &hash[1..]),
            format!("A-en-default-{}.epub", hash.to_uppercase()),
            format!("A-en-default-{hash}"),
            format!("A-en-default-{hash}."),
            format!("A-en-default-{hash}.epub.part"),
            format!("A-en-default-{hash}.averylongextension"),
            format!("A b-en-default-{hash}.epub"),
            format!("a/b-en-default-{hash}.epub"),
            format!("A-é-default-{hash}.epub"),
            format!("{long}-en-default-{hash}.epub"),
        ] {
            assert!(!is_published_name(&wrong), "{wrong}");
            assert_eq!(shard(&wrong), "");
        }
    }

    proptest! {
        #[test]
        fn every_title_that_is_accepted_makes_a_name_of_ours(title in "\\PC{0,300}", lang in "[A-Za-z0-9 _.-]{1,64}") {
            if let Ok(title) = canonical_title(&title, TitleRules::Exact) {
                let key = Key { title, lang: lang.clone(), font: lang, format: "epub".to_owned(), options: BTreeMap::new() };
                let name = key.filename("epub");
                prop_assert!(is_published_name(&name), "{}", name);
                prop_assert!(name.len() <= 80 + 24 + 24 + 32 + 3 + 1 + 16);
            }
        }

        #[test]
        fn a_canonical_title_is_its_own_canonical_form(title in "[ _\u{200e}\u{a0}e\u{301}\u{323}a가ᄀ]{0,12}") {
            for rules in [TitleRules::Exact, TitleRules::Mediawiki] {
                if let Ok(once) = canonical_title(&title, rules) {
                    prop_assert_eq!(canonical_title(&once, rules), Ok(once));
                }
            }
        }
    }
}
