"""Material of the instruction domain: cities to write about, and plain sentences by language.

A language is told by its function words, which the sentences here share with all of its prose.
"""

CITIES = (
  *("Berlin", "Paris", "Madrid", "Oslo", "Toronto", "Chicago", "Nairobi", "Lima", "Dakar"),
  *("Sydney", "Amsterdam", "Hamburg", "Boston", "Zagreb", "Helsinki", "Riga", "Manila"),
  *("Bangkok", "Jakarta", "Santiago", "Montevideo", "Valencia", "Bordeaux", "Denver"),
)

# In no other language of the table, so that each word is evidence.
FUNCTION_WORDS = {
  "English": frozenset(
    ["the", "and", "is", "with", "of", "this", "that", "are", "it", "for", "has", "from", "you"]
  ),
  "German": frozenset(
    [
      "der",
      "die",
      "das",
      "und",
      "ist",
      "mit",
      "eine",
      "nicht",
      "sehr",
      "auch",
      "wird",
      "sie",
      "ich",
    ]
  ),
  "French": frozenset(
    ["le", "les", "et", "est", "avec", "une", "dans", "pour", "pas", "très", "aussi", "du", "au"]
  ),
  "Spanish": frozenset(
    ["el", "los", "y", "con", "una", "muy", "también", "para", "las", "por", "pero", "su", "hay"]
  ),
}

# {city} and eight words or more; without a comma and in one sentence.
SENTENCES = {
  "English": "{city} is a lively place with the charm of old streets and wide parks",
  "German": "{city} ist eine sehr schöne Stadt mit alten Straßen und das Wetter ist mild",
  "French": "{city} est une ville très vivante avec les vieilles rues et le grand parc",
  "Spanish": "{city} es una ciudad muy alegre con calles antiguas y el parque para las familias",
}
FILLERS = {
  "English": "the people and the markets",
  "German": "die Menschen und der Markt",
  "French": "les gens et le marché",
  "Spanish": "el mercado y los barrios",
}

KEYWORDS = ("harbour", "lantern", "museum", "bridge", "copper", "violin", "orchard", "tunnel")
FORBIDDEN = ("beautiful", "amazing", "famous", "tourist", "history", "capital", "population")
ENDINGS = ("That is all for now", "Thank you for reading", "See it for yourself", "End of note")
