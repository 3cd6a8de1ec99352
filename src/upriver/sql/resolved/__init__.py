"""From the plan that Spark has analysed to relations: names, types and coercions are resolved before this begins."""
