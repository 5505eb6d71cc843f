//! The kinds of values a configuration holds: spans of time, sizes, modes and a few choices.
//!
//! Owns how each is written and read. Promises that what is written reads back as the same value, and that no value
//! read is so large that adding it to a time or a size overflows. Does not know which key holds which value.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The longest span that is accepted: 100 years, so that adding it to a date cannot overflow.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// A span of time: `"90s"`, `"10m"`, `"1h 30m"` or whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

/// Makes a span of whole seconds.
pub(super) const fn secs(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

/// A number of bytes: a whole number, or text such as `"200MB"` (10⁶) and `"2GiB"` (2³⁰).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

/// The permission bits of a published file, written as octal text: `"0640"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

/// How long a published file may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// For ever: `"never"`.
    Never,
    /// For this long, counted as `ttl_from` says.
    After(Duration),
}

/// What `max_age` is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TtlFrom {
    /// From publishing.
    Published,
    /// From the last time the path was handed out.
    Accessed,
}

/// What is done to a title before it becomes part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TitleRules {
    /// NFC and nothing else.
    Exact,
    /// NFC; underscores are blanks, runs of blanks are one, ends are trimmed, direction marks go.
    Mediawiki,
}

/// What is done to the first letter of a title under `mediawiki`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstLetter {
    /// Nothing: two titles that differ in it are two titles.
    AsIs,
    /// It becomes a capital where that is one letter too, as on most wikis.
    Capital,
}

/// The built-in look at an output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// A zip with a stored `mimetype` first and every CRC right.
    Epub,
    /// A header and a trailer.
    Pdf,
    /// The signature and record table of MOBI.
    Mobi,
    /// The signature and record table of AZW3.
    Azw3,
    /// A regular file that is not empty, nothing more.
    None,
}

impl Check {
    /// Chooses the check that fits an extension, in small or capital letters.
    pub fn for_extension(extension: &str) -> Self {
        match extension.to_ascii_lowercase().as_str() {
            "epub" => Self::Epub,
            "pdf" => Self::Pdf,
            "mobi" => Self::Mobi,
            "azw3" => Self::Azw3,
            _ => Self::None,
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains('M') {
            return Err(format!("{text:?} is no duration: write `m` for minutes, and longer spans in days (`d`)"));
        }
        let length = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => humantime::parse_duration(text)
                .map_err(|_| format!("{text:?} is no duration: write \"90s\", \"10m\", \"1h 30m\" or whole seconds"))?,
        };
        if length > LONGEST {
            return Err(format!("{text:?} is longer than 100 years"));
        }
        Ok(Self(length))
    }
}

impl fmt::Display for Span {
    /// Writes the span in days and smaller units, none that is zero: `1h 30m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanos = u64::from(self.0.subsec_nanos());
        let units = [
            (seconds / 86_400, "d"),
            (seconds / 3_600 % 24, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (nanos / 1_000_000, "ms"),
            (nanos / 1_000 % 1_000, "us"),
            (nanos % 1_000, "ns"),
        ];
        let shown: Vec<String> =
            units.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
        f.write_str(if shown.is_empty() { "0s" } else { "" })?;
        f.write_str(&shown.join(" "))
    }
}

/// The units of size: KB is 10³ and KiB is 2¹⁰.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || format!("{text:?} is no size: write \"200MB\", \"2GiB\", \"1.5GB\" or whole bytes");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim());
        let factor = match unit {
            "" | "B" => 1,
            _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok().filter(|len| *len <= 9).ok_or_else(wrong)?);
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let fraction: u64 = fraction.parse().map_err(|_| wrong())?;
        let bytes = u128::from(whole) * u128::from(factor) + u128::from(fraction) * u128::from(factor) / scale;
        u64::try_from(bytes).map_err(|_| format!("{text:?} is too large")).and_then(Self::within_bounds)
    }
}

impl Bytes {
    /// Refuses what neither TOML nor SQL can hold as a whole number.
    fn within_bounds(bytes: u64) -> Result<Self, String> {
        match i64::try_from(bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => Err(format!("{bytes} bytes are too many")),
        }
    }
}

impl fmt::Display for Bytes {
    /// Writes the size in the unit that makes the shortest text and leaves no rest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = UNITS.iter().filter(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        let texts = fitting.map(|(unit, factor)| format!("{}{unit}", self.0 / factor));
        let shortest = texts.min_by_key(String::len).unwrap_or_else(|| self.0.to_string());
        f.write_str(&shortest)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        match u32::from_str_radix(text, 8) {
            Ok(mode) if octal => Ok(Self(mode)),
            _ => Err(format!("{text:?} is no mode: write octal digits as text, \"0640\"")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for MaxAge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "never" => Ok(Self::Never),
            span => span.parse::<Span>().map(|span| Self::After(span.0)).map_err(|wrong| wrong + ", or \"never\""),
        }
    }
}

impl fmt::Display for MaxAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::After(length) => Span(*length).fmt(f),
        }
    }
}

/// A value that is written as text and, some of them, as a whole number.
trait Written: FromStr<Err = String> {
    /// What stands after "expected" when it is something else.
    const EXPECTED: &'static str;

    fn from_number(number: u64) -> Result<Self, String>;
}

impl Written for Span {
    const EXPECTED: &'static str = "a duration (\"90s\", \"10m\" or whole seconds)";

    fn from_number(number: u64) -> Result<Self, String> {
        number.to_string().parse()
    }
}

impl Written for MaxAge {
    const EXPECTED: &'static str = "a duration (\"10m\" or whole seconds) or \"never\"";

    fn from_number(number: u64) -> Result<Self, String> {
        number.to_string().parse()
    }
}

impl Written for Bytes {
    const EXPECTED: &'static str = "a size (\"200MB\", \"2GiB\" or whole bytes)";

    fn from_number(number: u64) -> Result<Self, String> {
        Self::within_bounds(number)
    }
}

impl Written for Mode {
    const EXPECTED: &'static str = "a mode as text (\"0640\")";

    fn from_number(number: u64) -> Result<Self, String> {
        Err(format!("a mode is written as text: \"0640\", not {number}"))
    }
}

struct Reader<T>(PhantomData<T>);

impl<T: Written> Visitor<'_> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        T::from_number(number).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let number = u64::try_from(number).map_err(|_| E::custom(format!("{number} is below zero")))?;
        self.visit_u64(number)
    }
}

macro_rules! read_and_write {
    ($($kind:ty),+) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Reader(PhantomData))
            }
        }
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}
read_and_write!(Span, Bytes, Mode, MaxAge);

/// Reads text, where empty text means that there is none.
pub(super) fn none_if_empty<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: From<String>,
{
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| T::from(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_read_in_every_form_and_written_in_one() {
        for (text, seconds, written) in [
            ("90s", 90, "1m 30s"),
            ("10m", 600, "10m"),
            ("1h 30m", 5_400, "1h 30m"),
            ("90", 90, "1m 30s"),
            ("90d", 7_776_000, "90d"),
            ("24h", 86_400, "1d"),
            ("0", 0, "0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_secs(), span.to_string().as_str()), (seconds, written), "{text}");
        }
        for wrong in ["", "-1", "ten", "5M", "1.5", "18446744073709551615", "900000d", "5 x"] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_decimal_or_binary_by_their_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("200MB", 200_000_000),
            ("2GiB", 2 << 30),
            ("1.5GB", 1_500_000_000),
            ("256kb", 256_000),
            ("1 KiB", 1_024),
            ("0.5TiB", 1 << 39),
            ("3B", 3),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "GB", "1.2.3GB", "-1", "5M", "1e3", ".5GB", "1.GB", "99999999TB", "18446744073709551615"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_is_written_in_the_unit_it_was_meant_in() {
        for text in ["200MB", "2GiB", "1GB", "256KB", "12345", "0"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_mode_is_octal_text() {
        assert_eq!("0640".parse(), Ok(Mode(0o640)));
        assert_eq!(Mode(0o640).to_string(), "0640");
        for wrong in ["", "0888", "rw-", "+640", "-1"] {
            assert!(wrong.parse::<Mode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_check_is_chosen_by_the_extension() {
        assert_eq!(Check::for_extension("EPUB"), Check::Epub);
        assert_eq!(Check::for_extension("txt"), Check::None);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(millis in 0_u64..3_000_000_000_000, bytes in 0..=i64::MAX as u64) {
            let span = Span(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn no_text_makes_a_reader_panic(text in ".*") {
            let _ = (text.parse::<Span>(), text.parse::<Bytes>(), text.parse::<Mode>(), text.parse::<MaxAge>());
        }
    }
}
