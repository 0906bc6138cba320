//! The policy settings of one source: parsing, validation, and formatting as text.

use super::{Origin, Part, PolicyError, Settings, TEXT_MAX, is_policy_name, shown};

impl Settings {
    /// Parses `value` and sets the policy setting called `name` to the result. `name` may have the prefixes of an
    /// extended attribute. Every source uses this function. A failure changes nothing.
    ///
    /// # Errors
    /// No policy setting has this name, the text is not a valid value of the setting, or this source cannot contain the
    /// setting.
    pub fn set(&mut self, origin: Origin, name: &[u8], value: &[u8]) -> Result<Part, PolicyError> {
        let part = Part::named(name)?;
        if !part.is_set_by(origin) {
            return Err(PolicyError::Place { part, origin });
        }
        let text = std::str::from_utf8(value).unwrap_or("\u{fffd}").trim();
        let text = part.present_value(text).unwrap_or(text);
        if self.read(part, text) { Ok(part) } else { Err(PolicyError::Value { part, value: shown(value) }) }
    }

    /// Parses a list of the form `name=value,name=value`: the syntax of mount options and of `WEIR_POLICY`. Ignores
    /// white space around the elements.
    pub fn parse(origin: Origin, text: &str) -> Result<Settings, PolicyError> {
        let mut settings = Settings::default();
        for element in text.split(',').map(str::trim).filter(|element| !element.is_empty()) {
            let (name, value) = element.split_once('=').ok_or_else(|| PolicyError::Form(element.to_owned()))?;
            settings.set(origin, name.trim().as_bytes(), value.as_bytes())?;
        }
        Ok(settings)
    }

    /// Parses settings that a peer sent. The peer may run a newer version of Weir with more settings and values, so
    /// this function skips elements that it cannot parse.
    pub fn of_peer(origin: Origin, text: &[u8]) -> Settings {
        let mut settings = Settings::default();
        for element in text[..text.len().min(TEXT_MAX)].split(|b| *b == b',') {
            if let Some(at) = element.iter().position(|b| *b == b'=') {
                let _ = settings.set(origin, &element[..at], &element[at + 1..]);
            }
        }
        settings
    }

    /// Returns the policy settings in the extended attributes of a directory or file; ignores all other attributes.
    /// Skips each invalid setting, and passes its error to `refused`: only another version of Weir can have written the
    /// setting.
    pub fn of_xattrs<'a>(
        origin: Origin,
        xattrs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        mut refused: impl FnMut(PolicyError),
    ) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in xattrs.into_iter().filter(|(name, _)| is_policy_name(name)) {
            if let Err(error) = settings.set(origin, name, value) {
                refused(error);
            }
        }
        settings
    }

    /// Returns the policy settings that have a value in this [`Settings`].
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        Part::ALL.iter().copied().filter(|part| self.has(*part))
    }

    /// Returns whether no policy setting has a value in this [`Settings`].
    pub fn is_empty(&self) -> bool {
        self.parts().next().is_none()
    }

    /// Removes the value of a policy setting from this [`Settings`].
    pub fn unset(&mut self, part: Part) {
        self.retain(|other| other != part);
    }

    /// Returns the settings as text in the syntax of [`Settings::parse`].
    pub fn text(&self) -> String {
        let one = |part: Part| self.get(part).map(|value| format!("{}={value}", part.name()));
        self.parts().filter_map(one).collect::<Vec<_>>().join(",")
    }
}
