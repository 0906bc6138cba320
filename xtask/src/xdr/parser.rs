//! Parser of XDR descriptions (RFC 4506 section 6.3), including the amendments that RFC 8276 contains as comments.

use super::lexer::{Token, tokens};
use super::model::{Arm, Base, Declaration, Definition, Model, Shape, Union, Value};

/// Parses one XDR description and adds its definitions to `model`.
///
/// # Errors
/// The description has text that is not valid XDR; the error has the line number of the first such text.
pub fn parse(text: &str, model: &mut Model) -> Result<(), String> {
    let (text, amendments) = split_amendments(text);
    let mut parser = Parser { tokens: tokens(&text)?, at: 0 };
    while parser.peek().is_some() {
        for definition in parser.definition()? {
            model.add(definition)?;
        }
    }
    for (target, lines) in amendments {
        let mut parser = Parser { tokens: tokens(&lines)?, at: 0 };
        match model.get(&target) {
            Some(Definition::Enum(..)) => model.extend_enum(&target, parser.enum_values(None)?)?,
            _ => {
                let (arms, _) = parser.arms(None)?;
                model.extend_union(&target, arms)?;
            }
        }
    }
    Ok(())
}

/// Extracts the additions of RFC 8276 to older enums and unions. Each addition is in two comments: the comment
/// "Following lines are to be added to NAME", and a comment with the lines to add. The lines to add contain comments
/// themselves, so only a line with nothing but `*/` ends the comment around them.
fn split_amendments(text: &str) -> (String, Vec<(String, String)>) {
    let (mut plain, mut amendments) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((_, target)) = line.split_once("Following lines are to be added to ") else {
            plain = plain + line + "\n";
            continue;
        };
        let target = target.trim_end_matches("*/").trim().trim_start_matches("enum ").to_string();
        let added = lines.by_ref().skip_while(|l| l.trim() == "/*").take_while(|l| l.trim() != "*/");
        amendments.push((target, added.fold(String::new(), |all, l| all + l + "\n")));
    }
    (plain, amendments)
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn fail<T>(&self, wanted: &str) -> Result<T, String> {
        match self.tokens.get(self.at) {
            Some((line, token)) => Err(format!("line {line}: expected {wanted}, found {token}")),
            None => Err(format!("expected {wanted}, found the end")),
        }
    }

    fn next_is(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    fn eat(&mut self, mark: char) -> bool {
        let found = self.next_is(mark);
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char) -> Result<(), String> {
        if self.eat(mark) { Ok(()) } else { self.fail(&format!("{mark:?}")) }
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        if self.eat_word(word) { Ok(()) } else { self.fail(word) }
    }

    fn name(&mut self) -> Result<String, String> {
        let Some(Token::Name(name)) = self.peek() else { return self.fail("a name") };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn value(&mut self) -> Result<Value, String> {
        let value = match self.peek() {
            Some(Token::Number(number)) => Value::Number(*number),
            Some(Token::Name(name)) => Value::Name(name.clone()),
            _ => return self.fail("a value"),
        };
        self.at += 1;
        Ok(value)
    }

    /// Parses one definition. A program becomes constants for its numbers.
    fn definition(&mut self) -> Result<Vec<Definition>, String> {
        let definition = match self.name()?.as_str() {
            "const" => {
                let name = self.name()?;
                self.mark('=')?;
                Definition::Const(name, self.value()?)
            }
            "typedef" => Definition::Typedef(self.declaration()?.ok_or("typedef of void")?),
            "enum" => {
                let name = self.name()?;
                self.mark('{')?;
                Definition::Enum(name, self.enum_values(Some('}'))?)
            }
            "struct" => {
                let name = self.name()?;
                self.mark('{')?;
                Definition::Struct(name, self.fields()?)
            }
            "union" => Definition::Union(self.union()?),
            "program" => return self.program(),
            _ => {
                self.at -= 1;
                return self.fail("a definition");
            }
        };
        self.mark(';')?;
        Ok(vec![definition])
    }

    /// Parses a list of `NAME = value` items up to the token `end`, or to the end of the input. The comma after the
    /// last item is optional.
    fn enum_values(&mut self, end: Option<char>) -> Result<Vec<(String, Value)>, String> {
        let mut values = Vec::new();
        while !self.at_end(end) {
            let name = self.name()?;
            self.mark('=')?;
            values.push((name, self.value()?));
            if !self.eat(',') && !self.next_is('}') && self.peek().is_some() {
                return self.fail("',' or '}'");
            }
        }
        Ok(values)
    }

    /// Returns whether the list ends at the current token: at the token `end`, which is then consumed, or without `end`
    /// at the end of the input.
    fn at_end(&mut self, end: Option<char>) -> bool {
        match end {
            Some(mark) => self.eat(mark),
            None => self.peek().is_none(),
        }
    }

    fn fields(&mut self) -> Result<Vec<Declaration>, String> {
        let mut fields = Vec::new();
        while !self.eat('}') {
            fields.extend(self.declaration()?);
            self.mark(';')?;
        }
        Ok(fields)
    }

    fn union(&mut self) -> Result<Union, String> {
        let name = self.name()?;
        self.word("switch")?;
        self.mark('(')?;
        let switch = self.base()?;
        self.name()?;
        self.mark(')')?;
        self.mark('{')?;
        let (arms, default) = self.arms(Some('}'))?;
        Ok(Union { name, switch, arms, default })
    }

    fn arms(&mut self, end: Option<char>) -> Result<(Vec<Arm>, Option<Option<Declaration>>), String> {
        let (mut arms, mut default) = (Vec::new(), None);
        while !self.at_end(end) {
            if self.eat_word("default") {
                self.mark(':')?;
                default = Some(self.declaration()?);
                self.mark(';')?;
                continue;
            }
            let mut cases = Vec::new();
            while self.eat_word("case") {
                cases.push(self.value()?);
                self.mark(':')?;
            }
            if cases.is_empty() {
                return self.fail("case or default");
            }
            let body = self.declaration()?;
            self.mark(';')?;
            arms.extend(cases.into_iter().map(|case| Arm { case, body: body.clone() }));
        }
        Ok((arms, default))
    }

    /// Parses a declaration without the semicolon after it; returns `None` for `void`.
    fn declaration(&mut self) -> Result<Option<Declaration>, String> {
        if self.eat_word("void") {
            return Ok(None);
        }
        let base = self.base()?;
        if self.eat('*') {
            return Ok(Some(Declaration { name: self.name()?, base, shape: Shape::Optional }));
        }
        let name = self.name()?;
        let shape = if self.eat('[') {
            let shape = Shape::Fixed(self.value()?);
            self.mark(']')?;
            shape
        } else if self.eat('<') {
            let bound = if self.next_is('>') { None } else { Some(self.value()?) };
            self.mark('>')?;
            Shape::Variable(bound)
        } else {
            Shape::Plain
        };
        Ok(Some(Declaration { name, base, shape }))
    }

    fn base(&mut self) -> Result<Base, String> {
        Ok(match self.name()?.as_str() {
            "unsigned" if self.eat_word("hyper") => Base::UnsignedHyper,
            "unsigned" => {
                self.eat_word("int");
                Base::Unsigned
            }
            "int" | "int32_t" => Base::Int,
            "uint32_t" => Base::Unsigned,
            "hyper" | "int64_t" => Base::Hyper,
            "uint64_t" => Base::UnsignedHyper,
            "bool" => Base::Bool,
            "opaque" => Base::Opaque,
            "string" => Base::String,
            other => Base::Named(other.to_string()),
        })
    }

    /// Parses a program block (RFC 5531 section 12) into constants for its numbers. The generator does not need the
    /// types of the program's procedures.
    fn program(&mut self) -> Result<Vec<Definition>, String> {
        let mut numbers = Vec::new();
        let program = self.name()?;
        self.mark('{')?;
        while self.eat_word("version") {
            let version = self.name()?;
            self.mark('{')?;
            while !self.eat('}') {
                self.name()?;
                let procedure = self.name()?;
                self.mark('(')?;
                while !self.eat(')') {
                    self.name()?;
                }
                numbers.push(self.numbered(procedure)?);
            }
            numbers.push(self.numbered(version)?);
        }
        self.mark('}')?;
        numbers.push(self.numbered(program)?);
        Ok(numbers)
    }

    fn numbered(&mut self, name: String) -> Result<Definition, String> {
        self.mark('=')?;
        let value = self.value()?;
        self.mark(';')?;
        Ok(Definition::Const(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Model {
        let mut model = Model::default();
        parse(text, &mut model).unwrap();
        model
    }

    #[test]
    fn cases_share_a_body_and_booleans_switch() {
        let model = model("union u switch (bool b) { case TRUE: case FALSE: opaque o<4>; default: void; };");
        let Some(Definition::Union(union)) = model.get("u") else { panic!("no union") };
        assert_eq!(union.switch, Base::Bool);
        assert_eq!(union.arms.len(), 2);
        assert_eq!(union.arms[0].body, union.arms[1].body);
        assert_eq!(union.default, Some(None));
    }

    #[test]
    fn linked_lists_are_seen() {
        let model = model("struct e { int a; e *next; }; struct l { e *all; };");
        assert!(model.is_list("e"));
        assert!(!model.is_list("l"));
    }

    #[test]
    fn amendments_extend_what_is_there() {
        let mut model = model("enum n { A = 1 }; union u switch (n which) { case A: void; };");
        let more = "/* Following lines are to be added to enum n */\n/*\n B = 0x2, /* b */\n*/\n\
                    /* Following lines are to be added to u */\n/*\ncase B: int b;\n*/\nconst C = 5;\n";
        parse(more, &mut model).unwrap();
        assert_eq!(model.value(&Value::Name("B".into())), Ok(2));
        assert_eq!(model.value(&Value::Name("C".into())), Ok(5));
        let Some(Definition::Union(union)) = model.get("u") else { panic!("no union") };
        assert_eq!(union.arms[1].case, Value::Name("B".into()));
    }

    #[test]
    fn programs_become_numbers() {
        let model = model("program P { version V { void NUL(void) = 0; r DO(a) = 1; } = 4; } = 0x40000000;");
        let number = |name: &str| model.value(&Value::Name(name.into())).unwrap();
        assert_eq!([number("NUL"), number("DO"), number("V"), number("P")], [0, 1, 4, 0x4000_0000]);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| parse(text, &mut Model::default()).unwrap_err();
        assert_eq!(error("struct a {\n int b\n};"), "line 3: expected ';', found }");
        assert_eq!(error("const A = 1; const A = 2;"), "A has two values");
        assert_eq!(error("enum e { A = B };"), "B has no value");
    }
}
