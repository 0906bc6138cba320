//! Shell patterns over bytes: `*`, `?`, `[a-z]`, `[!a-z]`, and a backslash that makes the next byte literal.

/// Returns whether `pattern` matches all of `name`.
///
/// The time is at most proportional to the product of the two lengths, because the function retries only the last `*`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if let Some(next) = one(pattern, p, name[n]) {
            p = next;
            n += 1;
        } else if let Some((after_star, from)) = retry {
            (p, n) = (after_star, from + 1);
            retry = Some((after_star, from + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

/// Matches `byte` against the element of the pattern at position `p`. Returns the position after this element, or
/// `None` if the element does not match.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    let (found, next) = match *pattern.get(p)? {
        b'?' => (true, p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        b'[' => match set(pattern, p + 1, byte) {
            Some(outcome) => outcome,
            None => (byte == b'[', p + 1),
        },
        other => (other == byte, p + 1),
    };
    found.then_some(next)
}

/// Returns whether the bracket expression at position `p` matches `byte`, and the position after the expression.
/// Returns `None` if the expression has no closing bracket.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(p), Some(b'!' | b'^'));
    p += usize::from(negated);
    let first = p;
    let mut found = false;
    loop {
        let low = *pattern.get(p)?;
        if low == b']' && p > first {
            return Some((found != negated, p + 1));
        }
        let range_end = pattern.get(p + 2).filter(|end| pattern[p + 1] == b'-' && **end != b']');
        match range_end {
            Some(high) => {
                found |= (low..=*high).contains(&byte);
                p += 3;
            }
            None => {
                found |= low == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, name, want) in [
            ("*", "", true),
            ("*.so", "libc.so", true),
            ("*.so", "libc.so.6", false),
            ("*.so*", "libc.so.6", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), want, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_matched_in_little_time() {
        let pattern = "a*".repeat(50) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(5000).as_bytes()));
    }
}
