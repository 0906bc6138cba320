//! Model of XDR descriptions: the definitions in order, with the queries that the emitter needs.

use std::collections::HashMap;

/// A number: a literal, or the name of a constant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A literal.
    Number(i128),
    /// The name of a constant or enum value.
    Name(String),
}

/// The type of a declaration before its shape is applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Base {
    /// `int`
    Int,
    /// `unsigned int`
    Unsigned,
    /// `hyper`
    Hyper,
    /// `unsigned hyper`
    UnsignedHyper,
    /// `bool`
    Bool,
    /// `opaque`
    Opaque,
    /// `string`
    String,
    /// A type defined in a description.
    Named(String),
}

/// How often the base type occurs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Once.
    Plain,
    /// `[n]`
    Fixed(Value),
    /// `<n>` or `<>`
    Variable(Option<Value>),
    /// `*`
    Optional,
}

/// A field, a body of a union arm or a typedef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// Its name.
    pub name: String,
    /// Its type.
    pub base: Base,
    /// How often the type occurs.
    pub shape: Shape,
}

/// One `case` with its body; several cases over one body become several arms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The value of the discriminant that selects the arm.
    pub case: Value,
    /// The body; `None` is `void`.
    pub body: Option<Declaration>,
}

/// A discriminated union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Union {
    /// Its name.
    pub name: String,
    /// The type of the discriminant.
    pub switch: Base,
    /// Arms in order.
    pub arms: Vec<Arm>,
    /// The `default` arm, if there is one, and its body.
    pub default: Option<Option<Declaration>>,
}

/// One definition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition {
    /// `const`
    Const(String, Value),
    /// `typedef`
    Typedef(Declaration),
    /// `enum`
    Enum(String, Vec<(String, Value)>),
    /// `struct`
    Struct(String, Vec<Declaration>),
    /// `union`
    Union(Union),
}

impl Definition {
    /// Returns the name that the definition defines.
    pub fn name(&self) -> &str {
        match self {
            Definition::Const(name, _) | Definition::Enum(name, _) | Definition::Struct(name, _) => name,
            Definition::Typedef(declaration) => &declaration.name,
            Definition::Union(union) => &union.name,
        }
    }
}

/// All definitions of all descriptions.
#[derive(Default, Debug)]
pub struct Model {
    definitions: Vec<Definition>,
    index: HashMap<String, usize>,
    numbers: HashMap<String, i128>,
}

impl Model {
    /// Adds a definition.
    ///
    /// # Errors
    /// The name is already defined, or a number refers to a name that is not defined yet.
    pub fn add(&mut self, definition: Definition) -> Result<(), String> {
        match &definition {
            Definition::Const(name, value) => self.number(name, value)?,
            Definition::Enum(_, values) => values.iter().try_for_each(|(name, value)| self.number(name, value))?,
            _ => {}
        }
        let name = definition.name().to_string();
        if self.index.insert(name.clone(), self.definitions.len()).is_some() {
            return Err(format!("{name} is defined twice"));
        }
        self.definitions.push(definition);
        Ok(())
    }

    /// Adds values to an enum, as a later RFC does.
    ///
    /// # Errors
    /// There is no such enum, or a value is already defined.
    pub fn extend_enum(&mut self, name: &str, more: Vec<(String, Value)>) -> Result<(), String> {
        more.iter().try_for_each(|(value_name, value)| self.number(value_name, value))?;
        match self.get_mut(name) {
            Some(Definition::Enum(_, values)) => values.extend(more),
            _ => return Err(format!("no enum {name} to extend")),
        }
        Ok(())
    }

    /// Adds arms to a union, as a later RFC does.
    ///
    /// # Errors
    /// There is no such union.
    pub fn extend_union(&mut self, name: &str, more: Vec<Arm>) -> Result<(), String> {
        match self.get_mut(name) {
            Some(Definition::Union(union)) => union.arms.extend(more),
            _ => return Err(format!("no union {name} to extend")),
        }
        Ok(())
    }

    fn number(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let number = self.value(value)?;
        match self.numbers.insert(name.to_string(), number) {
            None => Ok(()),
            Some(_) => Err(format!("{name} has two values")),
        }
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Definition> {
        self.index.get(name).map(|&at| &mut self.definitions[at])
    }

    /// Returns all definitions in order.
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    /// Returns the definition of `name`.
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.index.get(name).map(|&at| &self.definitions[at])
    }

    /// Returns the number that a value stands for.
    ///
    /// # Errors
    /// A name that has no number.
    pub fn value(&self, value: &Value) -> Result<i128, String> {
        match value {
            Value::Number(number) => Ok(*number),
            Value::Name(name) => self.numbers.get(name).copied().ok_or_else(|| format!("{name} has no value")),
        }
    }

    /// Returns whether `name` is a struct whose last field is a pointer to the same struct: a linked list in XDR.
    pub fn is_list(&self, name: &str) -> bool {
        let Some(Definition::Struct(_, fields)) = self.get(name) else { return false };
        fields.last().is_some_and(|last| last.shape == Shape::Optional && last.base == Base::Named(name.to_string()))
    }
}
