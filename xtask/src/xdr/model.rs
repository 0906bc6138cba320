//! Model of XDR descriptions: all definitions in order, with the queries that the emitter needs.

use std::collections::HashMap;

/// A number in a description: a literal, or the name of a constant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A literal number.
    Number(i128),
    /// The name of a constant or enum value.
    Name(String),
}

/// The base type of a declaration, without its multiplicity (array, optional).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Base {
    /// The XDR type `int`.
    Int,
    /// The XDR type `unsigned int`.
    Unsigned,
    /// The XDR type `hyper`.
    Hyper,
    /// The XDR type `unsigned hyper`.
    UnsignedHyper,
    /// The XDR type `bool`.
    Bool,
    /// The XDR type `opaque`.
    Opaque,
    /// The XDR type `string`.
    String,
    /// A type that a description defines.
    Named(String),
}

/// The multiplicity of a declaration: how often the base type occurs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// The base type occurs once.
    Plain,
    /// A fixed-length array, written `[n]`.
    Fixed(Value),
    /// A variable-length array, written `<n>` or `<>`.
    Variable(Option<Value>),
    /// Optional data, written `*`.
    Optional,
}

/// A declaration: a field of a struct, the body of a union arm, or a typedef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// The name that the declaration declares.
    pub name: String,
    /// The base type of the declaration.
    pub base: Base,
    /// The multiplicity: how often the base type occurs.
    pub shape: Shape,
}

/// An arm of a union: one `case` with its body. Several cases with one body become several arms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The value of the discriminant that selects the arm.
    pub case: Value,
    /// The body of the arm; `None` means `void`.
    pub body: Option<Declaration>,
}

/// A discriminated union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Union {
    /// The name of the union.
    pub name: String,
    /// The type of the union's discriminant.
    pub switch: Base,
    /// The arms of the union in the order of the description.
    pub arms: Vec<Arm>,
    /// The `default` arm; `None` if the union has no `default`. The inner `None` means a `void` body.
    pub default: Option<Option<Declaration>>,
}

/// One definition of an XDR description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition {
    /// A constant (`const`).
    Const(String, Value),
    /// A type alias (`typedef`).
    Typedef(Declaration),
    /// An enumeration (`enum`).
    Enum(String, Vec<(String, Value)>),
    /// A structure (`struct`).
    Struct(String, Vec<Declaration>),
    /// A discriminated union (`union`).
    Union(Union),
}

impl Definition {
    /// Returns the name that this definition defines.
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
    /// The model has no enum with this name, or a value is already defined.
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
    /// The model has no union with this name.
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

    /// Returns all definitions in the order in which they were added.
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    /// Returns the definition of `name`.
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.index.get(name).map(|&at| &self.definitions[at])
    }

    /// Returns the numeric value of a literal or of a named constant.
    ///
    /// # Errors
    /// The name is not the name of a constant.
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
