//! Lexer of XDR descriptions (RFC 4506 section 6.2): names, numbers and punctuation.

use std::fmt;

/// A token of an XDR description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Token {
    /// A name or keyword.
    Name(String),
    /// A decimal, hexadecimal or octal number, which may be negative.
    Number(i128),
    /// A punctuation character.
    Mark(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => f.write_str(name),
            Token::Number(number) => write!(f, "{number}"),
            Token::Mark(mark) => write!(f, "{mark}"),
        }
    }
}

/// Splits `text` into tokens. Drops comments, and lines that begin with `%`, which rpcgen copies to its C output.
///
/// # Errors
/// The text has a character that XDR does not allow, or an invalid number; the error has the line number.
pub fn tokens(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let mut out = Vec::new();
    let mut in_comment = false;
    for (index, line) in text.lines().enumerate() {
        if !line.trim_start().starts_with('%') {
            line_tokens(line, &mut in_comment, index + 1, &mut out)?;
        }
    }
    Ok(out)
}

fn line_tokens(line: &str, in_comment: &mut bool, number: usize, out: &mut Vec<(usize, Token)>) -> Result<(), String> {
    let mut rest = line;
    loop {
        if *in_comment {
            let Some(end) = rest.find("*/") else { return Ok(()) };
            *in_comment = false;
            rest = &rest[end + 2..];
        }
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Ok(()) };
        if rest.starts_with("/*") {
            *in_comment = true;
            rest = &rest[2..];
            continue;
        }
        let word_end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let token = if first.is_ascii_alphabetic() {
            let (word, after) = rest.split_at(rest.find(word_end).unwrap_or(rest.len()));
            rest = after;
            Token::Name(word.to_string())
        } else if first.is_ascii_digit() || first == '-' {
            let end = rest[1..].find(word_end).map_or(rest.len(), |end| end + 1);
            let (word, after) = rest.split_at(end);
            rest = after;
            Token::Number(parse_number(word).ok_or_else(|| format!("line {number}: not a number: {word}"))?)
        } else if "{}()[]<>;:,=*".contains(first) {
            rest = &rest[1..];
            Token::Mark(first)
        } else {
            return Err(format!("line {number}: unexpected {first:?}"));
        };
        out.push((number, token));
    }
}

fn parse_number(word: &str) -> Option<i128> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        i128::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        i128::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    value.ok().map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(input: &str) -> String {
        let words = tokens(input).unwrap();
        words.iter().map(|(_, t)| t.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_percent_lines_vanish() {
        assert_eq!(text("a /* b\n c */ d\n %#include <x>\ne/**/f"), "a d e f");
    }

    #[test]
    fn numbers_in_every_base() {
        assert_eq!(text("=10067, 0x1F 017 -3 0xffffffffffffffff"), "= 10067 , 31 15 -3 18446744073709551615");
        assert_eq!(tokens("x\n= 09z").unwrap_err(), "line 2: not a number: 09z");
        assert_eq!(tokens("a ? b").unwrap_err(), "line 1: unexpected '?'");
    }
}
