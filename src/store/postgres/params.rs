//! Statements with named parameters, as the files write them, made into the numbered and typed ones of the protocol.

use anyhow::{Context, Result};
use tokio_postgres::types::{ToSql, Type};

/// A named value.
pub(super) type Param<'a> = (&'static str, &'a dyn Typed);

/// A value that knows its SQL type: with types given, no statement has to be prepared by name.
pub(super) trait Typed: ToSql + Sync {
    fn kind(&self) -> Type;
}

macro_rules! typed {
    ($($rust:ty => $sql:ident,)+) => {$(
        impl Typed for $rust {
            fn kind(&self) -> Type {
                Type::$sql
            }
        }

        impl Typed for Option<$rust> {
            fn kind(&self) -> Type {
                Type::$sql
            }
        }
    )+};
}

typed! {
    i64 => INT8,
    bool => BOOL,
    &str => TEXT,
    String => TEXT,
    Vec<String> => TEXT_ARRAY,
    Vec<i64> => INT8_ARRAY,
}

/// Names values for a statement: `named! {":token": token}`.
macro_rules! named {
    { $($name:literal: $value:expr),+ $(,)? } => {
        &[$(($name, &$value as &dyn $crate::store::postgres::params::Typed)),+]
    };
}
pub(super) use named;

/// Leaves the comments out and puts `$1`, `$2`… in the place of names; only values that the statement uses are given back.
#[expect(clippy::type_complexity, reason = "what the client library takes")]
pub(super) fn numbered<'a>(sql: &str, params: &[Param<'a>]) -> Result<(String, Vec<(&'a (dyn ToSql + Sync), Type)>)> {
    let mut text = String::with_capacity(sql.len());
    let mut used: Vec<&Param<'a>> = Vec::new();
    for line in sql.lines().filter(|line| !line.trim_start().starts_with("--")) {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once(':') {
            text.push_str(before);
            let length = after.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
            if length == 0 {
                // A cast: two colons.
                text.push_str("::");
                rest = after.strip_prefix(':').unwrap_or(after);
                continue;
            }
            let (name, after) = after.split_at(length);
            let known = |param: &&Param<'_>| param.0.strip_prefix(':') == Some(name);
            let at = used.iter().position(known).unwrap_or(used.len());
            if at == used.len() {
                used.push(params.iter().find(known).with_context(|| format!("the statement's :{name} has no value"))?);
            }
            text.push_str(&format!("${}", at + 1));
            rest = after;
        }
        text.push_str(rest);
        text.push('\n');
    }
    Ok((text, used.into_iter().map(|(_, value)| (*value as &(dyn ToSql + Sync), value.kind())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers_and_casts_and_comments_do_not() {
        let (first, second) = (1_i64, "x");
        let params: &[Param<'_>] = named! {":other": second, ":id": first, ":unused": first};
        let sql = "-- A comment. :id\nSELECT a::bigint\nFROM t\nWHERE id = :id AND b = :other AND c < :id";
        let (text, used) = numbered(sql, params).unwrap();
        assert_eq!(text, "SELECT a::bigint\nFROM t\nWHERE id = $1 AND b = $2 AND c < $1\n");
        assert_eq!(used.iter().map(|(_, kind)| kind.clone()).collect::<Vec<_>>(), [Type::INT8, Type::TEXT]);
    }

    #[test]
    fn a_name_without_a_value_is_an_error() {
        let error = numbered("SELECT :nothing", &[]).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "the statement's :nothing has no value");
    }
}
