//! What each fuzz target does with its bytes: the targets run it on what they make up, and `tests/corpus.rs` on every file
//! of the corpus. Each panics where a promise is broken and says whether the bytes were accepted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use export_queue::cache::check::{Kind, check};
use export_queue::config::{self, Config, TitleRules, is_plain_value};
use export_queue::exporter::{one_line, plain, progress_line};
use export_queue::key::{self, Key, Selection, canonical_title, is_published_name, parse_filename, shard};
use export_queue::template::{Part, Template, Values, title_as_path};

/// A configuration that is taken is shown so that it reads back as itself, and gives every title a name.
pub(crate) fn config(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    let read = |text: &str| config::parse(text, Path::new("/c/config.toml"), &BTreeMap::new());
    let loaded = match read(text) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let shown = config::show(&loaded, false);
    let again = read(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(veiled(again.config), veiled(loaded.config.clone()), "{shown}");
    drop(config::show(&loaded, true));
    drop(config::warnings(&loaded.config));
    for (name, format) in &loaded.config.format {
        for (_, _, argument) in format.arguments() {
            assert!(Template::parse(argument).is_ok(), "{argument}");
        }
        let selection = Selection { title: "A/B".to_owned(), format: Some(name.clone()), ..Selection::default() };
        let Ok(key) = key::resolve(&loaded.config, &selection) else { continue };
        let filename = key.filename(&loaded.config.extension(name));
        assert!(is_published_name(&filename), "{filename}");
    }
    true
}

/// The configuration without what is shown as `***`.
fn veiled(mut config: Config) -> Config {
    config.database = config.database.map(|_| String::new());
    config.format.values_mut().flat_map(|format| format.env.values_mut()).for_each(String::clear);
    config
}

/// A title has one form; a key's name is one path component that is told as ours; what is told as ours is safe.
pub(crate) fn names(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    if let Some(parts) = parse_filename(text) {
        assert!(text.len() < 200 && !text.contains(['/', '\0', '\n']) && !text.starts_with(['.', '-']), "{text:?}");
        assert_eq!(shard(text), &parts.hash[..2]);
        assert!(text.ends_with(&format!("-{}.{}", parts.hash, parts.ext)));
    } else {
        assert_eq!(shard(text), "");
    }
    let mut lines = text.splitn(3, '\n');
    let title = lines.next().unwrap_or_default();
    let mut word = |other: &str| lines.next().filter(|word| is_plain_value(word)).unwrap_or(other).to_owned();
    let (lang, font) = (word("en"), word("default"));
    let mut is_taken = false;
    for rules in [TitleRules::Exact, TitleRules::Mediawiki] {
        let Ok(title) = canonical_title(title, rules) else { continue };
        is_taken = true;
        assert_eq!(canonical_title(&title, rules).as_ref(), Ok(&title), "the one form of a title is its own");
        assert!(title.len() <= key::MAX_TITLE_BYTES && !title.trim().is_empty());
        let format = "epub".to_owned();
        let key = Key { title, lang: lang.clone(), font: font.clone(), format, options: BTreeMap::new() };
        let filename = key.filename("epub");
        assert!(parse_filename(&filename).is_some_and(|parts| parts.ext == "epub"), "{filename}");
        let other = Key { title: format!("{}x", key.title), ..key };
        assert_ne!(other.filename("epub"), filename);
    }
    is_taken
}

fn is_tame(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202e}' | '\u{2066}'))
}

/// Whatever an exporter says becomes one short line that cannot write to a terminal.
pub(crate) fn progress(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let line = progress_line(&text);
    assert!(is_tame(&line) && line.chars().count() <= 200, "{line:?}");
    let words = one_line(&text);
    assert!(is_tame(&words) && words.len() <= 2000, "{words:?}");
    assert_eq!(line.is_empty(), words.is_empty(), "both see the same lines");
    let tamed = plain(&text);
    assert!(is_tame(&tamed) && tamed.chars().count() == text.chars().count());
    assert_eq!(plain(&tamed), tamed);
    !line.is_empty()
}

/// A template reads back as it was written, and what a placeholder stands for is put in once and never looked at again.
pub(crate) fn template(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    let (argument, title) = text.split_once('\n').unwrap_or((text, "{lang} {title}"));
    let path = title_as_path(title);
    assert!(!path.contains(['/', '\\']) && !path.starts_with(['.', '-']), "{path:?}");
    let template = match Template::parse(argument) {
        Ok(template) => template,
        Err(unknown) => {
            assert!(argument.contains(&format!("{{{}}}", unknown.name)), "{unknown}");
            return false;
        }
    };
    let written = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Slot(slot) => slot.to_string(),
    };
    assert_eq!(template.parts.iter().map(written).collect::<String>(), argument);
    let options = BTreeMap::from([("a".to_owned(), "{title}".to_owned())]);
    let values = Values {
        title,
        lang: "{font}",
        font: "{title}",
        format: "epub",
        options: &options,
        output: Path::new("/w/out.epub"),
        input: None,
        workdir: Path::new("/w"),
        tmpdir: Path::new("/w/tmp"),
        filename: "name",
        job_id: 1,
        attempt: 2,
        state: "queued",
        reason: "",
        detail: "{title}",
        meta: "",
    };
    let piece = |part: &Part| Template { parts: vec![part.clone()] }.render(&values).into_string().expect("text");
    let whole = template.render(&values).into_string().expect("text");
    assert_eq!(template.parts.iter().map(piece).collect::<String>(), whole);
    for (part, piece) in template.parts.iter().map(|part| (part, piece(part))) {
        match part {
            Part::Text(text) => assert_eq!(*text, piece),
            Part::Slot(slot) if slot.to_string() == "{title}" => assert_eq!(piece, title),
            Part::Slot(slot) if slot.to_string() == "{lang}" => assert_eq!(piece, "{font}"),
            Part::Slot(_) => {}
        }
    }
    true
}

fn verdict(kind: Kind, data: &[u8]) -> bool {
    thread_local! {
        static DIR: tempfile::TempDir = {
            let memory = Path::new("/dev/shm");
            let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
            dir.expect("a directory")
        };
    }
    let path = DIR.with(|dir| dir.path().join("out"));
    fs::write(&path, data).expect("a file");
    match check(&path, kind, 0).expect("no trouble of ours") {
        Ok(checked) => {
            assert_eq!(checked.bytes, data.len() as u64);
            true
        }
        Err(fault) => {
            let words = fault.to_string();
            assert!(is_tame(&words) && words.chars().count() <= 1000, "{words:?}");
            false
        }
    }
}

/// An EPUB that is taken is whole: without its last byte it is not.
pub(crate) fn epub(data: &[u8]) -> bool {
    let is_taken = verdict(Kind::Epub, data);
    assert!(!is_taken || !verdict(Kind::Epub, &data[..data.len() - 1]), "it is whole with and without its last byte");
    is_taken
}

/// A PDF that is taken has a head and an end, and blanks after it change nothing.
pub(crate) fn pdf(data: &[u8]) -> bool {
    let is_taken = verdict(Kind::Pdf, data);
    if is_taken {
        assert!(data.windows(5).any(|word| word == b"%PDF-") && data.windows(5).any(|word| word == b"%%EOF"));
        assert!(!verdict(Kind::Pdf, &[data, b"x"].concat()), "something follows it");
    }
    is_taken
}

/// A MOBI that is taken ends with its last record.
pub(crate) fn mobi(data: &[u8]) -> bool {
    let is_taken = verdict(Kind::Mobi, data);
    if is_taken {
        assert!(data.ends_with(b"\xe9\x8e\r\n") && verdict(Kind::Azw3, data));
        assert!(!verdict(Kind::Mobi, &data[..data.len() - 1]), "its end is missing");
    }
    is_taken
}
