//! Permission bits: parsing, and applying the umask.

/// Parses permission bits in octal notation.
pub fn octal(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| digits && *bits <= 0o7777);
    bits.ok_or_else(|| "not permission bits; write octal digits up to 7777, such as 755".to_owned())
}

/// Returns `mode` without the permission bits that the umask of this process clears.
pub fn without_umask(mode: u32) -> u32 {
    let none = rustix::fs::Mode::empty();
    let mask = rustix::process::umask(none);
    rustix::process::umask(mask);
    mode & !mask.as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_parses_permission_bits() {
        assert_eq!(octal("755"), Ok(0o755));
        assert_eq!(octal("07777"), Ok(0o7777));
        for bad in ["", "8", "+7", "10000", "rwx", "777777777777"] {
            assert!(octal(bad).is_err(), "{bad}");
        }
    }
}
