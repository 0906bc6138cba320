//! What one place sets: read from text, checked, and written again.

use super::{Origin, Part, PolicyError, Settings, TEXT_MAX, is_policy_name, shown};

impl Settings {
    /// Sets the part called `name`, with or without the prefixes of an xattr, from its text. The one door for all places; a
    /// failure changes nothing.
    ///
    /// # Errors
    /// There is no such part, the text is no value of it, or it is not set there.
    pub fn set(&mut self, origin: Origin, name: &[u8], value: &[u8]) -> Result<Part, PolicyError> {
        let part = Part::named(name)?;
        if !part.is_set_by(origin) {
            return Err(PolicyError::Place { part, origin });
        }
        let text = std::str::from_utf8(value).unwrap_or("\u{fffd}").trim();
        if self.read(part, text) { Ok(part) } else { Err(PolicyError::Value { part, value: shown(value) }) }
    }

    /// Reads `name=value,name=value`, as it stands in options and in the environment; blanks around the elements do not count.
    pub fn parse(origin: Origin, text: &str) -> Result<Settings, PolicyError> {
        let mut settings = Settings::default();
        for element in text.split(',').map(str::trim).filter(|element| !element.is_empty()) {
            let (name, value) = element.split_once('=').ok_or_else(|| PolicyError::Form(element.to_owned()))?;
            settings.set(origin, name.trim().as_bytes(), value.as_bytes())?;
        }
        Ok(settings)
    }

    /// As [`Settings::parse`], of a peer, which may know more parts and values: what cannot be used is passed over.
    pub fn of_peer(origin: Origin, text: &[u8]) -> Settings {
        let mut settings = Settings::default();
        for element in text[..text.len().min(TEXT_MAX)].split(|b| *b == b',') {
            if let Some(at) = element.iter().position(|b| *b == b'=') {
                let _ = settings.set(origin, &element[..at], &element[at + 1..]);
            }
        }
        settings
    }

    /// What the xattrs of a directory or file set. Those that are no part of a policy are passed over, and those that are no
    /// good, which can only have been written by another version: `refused` is told of them.
    pub fn of_xattrs<'a>(
        origin: Origin,
        xattrs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        mut refused: impl FnMut(PolicyError),
    ) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in xattrs {
            if is_policy_name(name)
                && let Err(error) = settings.set(origin, name, value)
            {
                refused(error);
            }
        }
        settings
    }

    /// The parts that are set.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        Part::ALL.iter().copied().filter(|part| self.has(*part))
    }

    /// Whether no part is set.
    pub fn is_empty(&self) -> bool {
        self.parts().next().is_none()
    }

    /// Sets a part no longer.
    pub fn unset(&mut self, part: Part) {
        self.retain(|other| other != part);
    }

    /// The same as text, as [`Settings::parse`] reads it.
    pub fn text(&self) -> String {
        let one = |part: Part| self.get(part).map(|value| format!("{}={value}", part.name()));
        self.parts().filter_map(one).collect::<Vec<_>>().join(",")
    }
}
